"""`hapvr duplicates`: what are copies of each other, and which one to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hapvr.commands import terminal
from hapvr.commands.outputs import OutOption, check_out, write_out
from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.terminal import (
    ConfigOption,
    IndexModelOption,
    SetOption,
    counted,
    open_project,
    show,
)
from hapvr.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

    from hapvr.search.duplicates import DuplicatePair, GroupMember
    from hapvr.search.label_studio import Pair
    from hapvr.steps.project import Project
    from hapvr.steps.searcher import Searcher


def duplicates(
    config: ConfigOption,
    pairs: Annotated[
        bool, Option("--pairs", help="List pairs of every kind instead of groups of copies.")
    ] = False,
    between: Annotated[
        tuple[str, str] | None,
        Option(
            metavar="A B", help="Only what the folders of ids A and B share, e.g. SOURCE/FOLDER."
        ),
    ] = None,
    plan: Annotated[
        Path | None, Option(help="Also write what to keep, link or move: .json, .csv or .sh.")
    ] = None,
    out: OutOption = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Groups of copies, which copy to keep and why; with --pairs also parts, overlaps and other
    footage.

    Nothing is deleted. A shard that was looked through is left alone until its features, the model
    or the settings change.
    """
    from hapvr.search.plan import SUFFIXES
    from hapvr.steps.duplicate_pairs import make_duplicate_pairs
    from hapvr.steps.searcher import UNSURE, Searcher

    check_out(out)
    terminal.require_outside(plan)
    if plan is not None and (pairs or plan == out or plan.suffix.lower() not in SUFFIXES):
        raise ArgumentError(
            "--plan: expected a name that ends in .json, .csv or .sh, other than --out, and "
            "not --pairs"
        )

    project = open_project(config, set_)
    searcher = Searcher.open(project, model=model)
    warnings = list(searcher.warnings)
    warnings += _unknown_folders(searcher, between)
    if searcher.evidence is None:
        warnings.append(f"only files of the same bytes are listed; {UNSURE}")
    for key in searcher.collection.shards() if searcher.evidence is not None else ():
        with progress_bar(key) as progress:
            make_duplicate_pairs(project, searcher, key, progress=progress)

    if pairs:
        answer = _pair_answer(project, searcher, between)
    else:
        answer = _group_answer(project, searcher, between, plan)

    training = ", untrained" if searcher.untrained else ""
    text = [f"model    {searcher.model}{training}"]
    text += [f"warning  {warning}" for warning in warnings]
    text += answer.text
    notes = searcher.collection.metadata.clock_notes(answer.video_ids)
    text += _note_lines(notes)
    if out is not None:
        write_out(out, answer.rows, answer.tasks, searcher)
    result = {
        "pairs" if pairs else "groups": answer.rows.to_pylist(),
        "model": searcher.model,
        "untrained": searcher.untrained,
        "warnings": [*warnings, *notes],
    }
    show(result, text=text)


def _note_lines(notes: Sequence[str]) -> list[str]:
    return [f"note     {note}" for note in notes]


@dataclass(frozen=True)
class _Answer:
    """What `hapvr duplicates` found, as a table, lines for people, and tasks of Label Studio."""

    rows: pa.Table
    text: list[str]
    tasks: list[Pair]

    @property
    def video_ids(self) -> list[str]:
        """The videos that it names, each once."""
        names = ("video_id", "first", "second")
        columns = [self.rows[name].to_pylist() for name in names if name in self.rows.column_names]
        return list(dict.fromkeys(chain.from_iterable(columns)))


def _unknown_folders(searcher: Searcher, between: tuple[str, str] | None) -> list[str]:
    """A warning for each folder of --between in which no video is."""
    from hapvr.search.match import printable
    from hapvr.video.sources import is_inside

    ids = searcher.collection.shard_of
    return [
        f"no video of the collection has the id {printable(folder)} or is in that folder"
        for folder in between or ()
        if not any(is_inside(video_id, folder) for video_id in ids)
    ]


def _are_between(ids: Sequence[str], between: tuple[str, str] | None) -> bool:
    """Whether two different ones of these videos are in the two folders that are asked about."""
    from hapvr.video.sources import is_inside

    if between is None:
        return True
    first = {name for name in ids if is_inside(name, between[0])}
    second = {name for name in ids if is_inside(name, between[1])}
    return bool(first and second) and len(first | second) > 1


def _pair_answer(project: Project, searcher: Searcher, between: tuple[str, str] | None) -> _Answer:
    from hapvr.search.duplicates import pair_table
    from hapvr.steps.duplicate_pairs import duplicate_pairs

    least = project.config.search.min_duplicate_probability
    pairs = [
        pair
        for pair in duplicate_pairs(project, searcher, min_probability=least)
        if _are_between((pair.first, pair.second), between)
    ]
    rows = _with_verdicts(pair_table(pairs), [pair.verdict for pair in pairs])
    tasks: list[Pair] = [
        (pair.first, pair.second, pair.verdict, pair.probability) for pair in pairs
    ]
    return _Answer(rows, _pair_lines(pairs), tasks)


def _group_answer(
    project: Project,
    searcher: Searcher,
    between: tuple[str, str] | None,
    plan: Path | None,
) -> _Answer:
    """plan: is written, too."""
    from hapvr.search.duplicates import group_rows
    from hapvr.search.plan import write_plan
    from hapvr.steps.duplicate_groups import make_duplicate_groups
    from hapvr.steps.planned_moves import remember_plan

    with progress_bar("grouping copies") as progress:
        grouped = make_duplicate_groups(project, searcher, progress=progress)
    members: list[GroupMember] = []
    for _, group in groupby(grouped, key=lambda member: member.group):
        inside = list(group)
        if _are_between([member.video_id for member in inside], between):
            members += inside

    if plan is not None:
        write_plan(plan, members)
        remember_plan(project, members)

    rows = _with_verdicts(group_rows(members), [member.verdict for member in members])
    medoids = {member.group: member.video_id for member in members if member.medoid}
    tasks: list[Pair] = [
        (medoids[member.group], member.video_id, member.verdict, None)
        for member in members
        if not member.medoid
    ]
    return _Answer(rows, _group_lines(members), tasks)


def _with_verdicts(rows: pa.Table, verdicts: Sequence[str | None]) -> pa.Table:
    import pyarrow as pa

    return rows.append_column("verdict", pa.array(verdicts, pa.string()))


def _group_lines(members: list[GroupMember]) -> list[str]:
    from hapvr.search.plan import needless

    groups = [list(group) for _, group in groupby(members, key=lambda member: member.group)]
    num_groups = counted(len(groups), "group of copies", "groups of copies")
    num_needless = counted(
        len(needless(members)), "file more than needed", "files more than needed"
    )
    lines = [f"{num_groups}, {num_needless}"]
    lines += _advice_lines(groups)
    for group in groups:
        verdicts = [member.verdict for member in group if member.verdict]
        verdict = "unsure" if "unsure" in verdicts else verdicts[-1]
        lines.append(f"group {group[0].group}, {len(group)} videos: {verdict}")
        has_kept = any(member.keep for member in group)
        if not has_kept:  # the reason is that of all
            lines.append(f"  {group[0].reason}")
        lines += [_member_line(member, group[0], with_reason=has_kept) for member in group]

    return lines


def _advice_lines(groups: Sequence[Sequence[GroupMember]]) -> list[str]:
    """What to do about groups in which something is left to people."""
    lines = []
    unsure = [group for group in groups if any(one.verdict == "unsure" for one in group)]
    if unsure:
        lines.append(
            f"groups that are unsure: {len(unsure)}; look at them before you delete anything"
        )

    undecided = [group for group in groups if not any(member.keep for member in group)]
    if undecided:
        lines.append(
            f"groups that name no copy to keep: {len(undecided)}; compare them with `hapvr "
            "serve`, or say what you prefer in duplicates.prefer"
        )

    return lines


def _member_line(member: GroupMember, first: GroupMember, *, with_reason: bool) -> str:
    file = member.metadata
    size = f"{file.width_px}x{file.height_px} {file.codec} {file.num_bytes / 1e6:.1f} MB"
    line = f"  {'keep' if member.keep else '    '}  {member.video_id}  ({size})"
    if with_reason:
        return f"{line}: {member.reason}"
    is_same = member is not first and file.sha256 == first.metadata.sha256
    return f"{line}: the same file as the first" if is_same else line


def _pair_lines(pairs: list[DuplicatePair]) -> list[str]:
    counts = Counter(pair.kind for pair in pairs)
    by_kind = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    return [f"{len(pairs)} pairs: {by_kind}", *map(_pair_line, pairs)]


def _pair_line(pair: DuplicatePair) -> str:
    from hapvr.scorer.calibration import chance

    line = (
        f"{pair.kind:<13}  {pair.verdict or '':<8}  {chance(pair.probability)}  "
        f"{pair.first} ({100 * pair.first_covered:.0f} %) - {pair.second} "
        f"({100 * pair.second_covered:.0f} %)"
    )
    if pair.same_file:
        line += "  the same file"
    if pair.mark:
        line += "  marked as a match"
    return line
