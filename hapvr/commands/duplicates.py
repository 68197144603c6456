"""`hapvr duplicates`: which videos of the collection are copies, parts or other footage of each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hapvr.commands.search import check_out, write_out
from hapvr.commands.terminal import (
    ConfigOption,
    IndexModelOption,
    JsonOption,
    SetOption,
    exit_codes,
    overrides,
    progress_bar,
    show,
)

if TYPE_CHECKING:
    from hapvr.search.duplicates import DuplicatePair, GroupMember


@exit_codes
def duplicates(
    config: ConfigOption,
    min_probability: Annotated[
        float | None,
        typer.Option(
            min=0.5, max=1, help="Pairs below this probability do not count; default search.duplicates.min_probability."
        ),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="List pairs of every kind instead of groups of copies.")
    ] = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="With --pairs, only these: copy, contained, overlap, same_incident.")
    ] = None,
    folder: Annotated[str, typer.Option("--in", help="Only groups and pairs with a video whose id begins so.")] = "",
    out: Annotated[Path | None, typer.Option(help="Also write the rows to a .csv, .parquet or .json file.")] = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Groups of copies, which copy to keep and why; with --pairs also parts, overlaps and other footage.

    Nothing is deleted. A shard that was looked through is left alone until its features, the model or the settings change.
    """
    from hapvr.errors import ArgumentError
    from hapvr.search.duplicates import KINDS, group_rows
    from hapvr.steps.duplicates import (
        duplicate_pairs,
        make_duplicate_groups,
        make_duplicate_pairs,
        pair_table,
    )
    from hapvr.steps.project import Project
    from hapvr.steps.searcher import Searcher
    from hapvr.tables import export_table

    unknown = sorted(set(kind or ()) - set(KINDS))
    if unknown:
        raise ArgumentError(f"--kind {unknown[0]!r:.100}: wanted {', '.join(KINDS)}")
    check_out(out, ".csv", ".parquet", ".json")
    project = Project.open(config, overrides=overrides(set_))
    likely = project.config.search.duplicates.min_probability if min_probability is None else min_probability
    searcher = Searcher.open(project, model=model)
    for key in searcher.collection.shards():
        with progress_bar(key) as progress:
            make_duplicate_pairs(project, searcher, key, progress=progress)
    if pairs:
        found = duplicate_pairs(project, searcher, min_probability=likely)
        found = [one for one in found if not kind or one.kind in kind]
        found = [one for one in found if one.first.startswith(folder) or one.second.startswith(folder)]
        rows, text = pair_table(found), _pair_lines(found)
    else:
        members = make_duplicate_groups(project, searcher, min_probability=likely)
        chosen = {member.group for member in members if member.video_id.startswith(folder)}
        members = [member for member in members if member.group in chosen]
        rows, text = group_rows(members), _group_lines(members)
    if out is not None:
        write_out(out, lambda part: export_table(rows, part, out.suffix.lower()))
    show({"pairs" if pairs else "groups": rows.to_pylist()}, as_json=as_json, text="\n".join(text))


def _group_lines(members: list[GroupMember]) -> list[str]:
    sizes = Counter(member.group for member in members)
    lines = [f"{len(sizes)} groups of copies, {len(members) - len(sizes)} videos more than needed"]
    before = ""
    for member in members:
        if member.group != before:
            lines.append(f"group {member.group}, {sizes[member.group]} videos")
            before = member.group
        file = member.metadata
        size = f"{file.width_px}x{file.height_px} {file.codec} {file.num_bytes / 1e6:.1f} MB"
        lines.append(f"  {'keep' if member.keep else '    '}  {member.video_id}  ({size}): {member.reason}")
    return lines


def _pair_lines(pairs: list[DuplicatePair]) -> list[str]:
    counts = Counter(pair.kind for pair in pairs)
    lines = [f"{len(pairs)} pairs: {', '.join(f'{number} {kind}' for kind, number in sorted(counts.items()))}"]
    return lines + [
        f"{pair.kind:<13}  {100 * pair.probability:5.1f} %  {pair.first} ({100 * pair.first_covered:.0f} %) - "
        f"{pair.second} ({100 * pair.second_covered:.0f} %){'  marked as a match' if pair.mark else ''}"
        for pair in pairs
    ]
