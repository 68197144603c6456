"""`hapvr search`, `duplicates`, `watch` and `serve`: what contains footage of a query, what are
copies, what watch lists find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from warnings import warn

from typer import Argument, Option

from hapvr.commands import terminal
from hapvr.commands.answers import answer_lines, watched_line
from hapvr.commands.scoring import expand
from hapvr.commands.terminal import (
    ConfigOption,
    IndexModelOption,
    SetOption,
    open_project,
    progress_bar,
    show,
)
from hapvr.errors import ArgumentError, ConfigError
from hapvr.search import DEFAULT_TOP

if TYPE_CHECKING:
    import pyarrow as pa

    from hapvr.search.duplicates import DuplicatePair, GroupMember
    from hapvr.search.marks import Pair
    from hapvr.search.match import SearchAnswer
    from hapvr.steps.project import Project
    from hapvr.steps.searcher import Searcher

OUT_SUFFIXES = (".csv", ".parquet")
TASKS_SUFFIX = ".label-studio.json"
OutOption = Annotated[
    Path | None, Option(help=f"Also write a .csv, a .parquet, or tasks to NAME{TASKS_SUFFIX}.")
]


def search(
    config: ConfigOption,
    queries: Annotated[
        list[str] | None, Argument(help="Videos, pictures: files, URLs, folders, .txt lists.")
    ] = None,
    ids: Annotated[
        list[str] | None, Option("--id", help="A video of the collection as a query, by its id.")
    ] = None,
    top: Annotated[int, Option(help="Matches per query, at most.")] = DEFAULT_TOP,
    at: Annotated[float | None, Option(help="Only what the query shows at this second.")] = None,
    from_: Annotated[
        float | None, Option("--from", help="Only from this second of the query on.")
    ] = None,
    to: Annotated[float | None, Option(help="Only up to this second of the query.")] = None,
    min_probability: Annotated[
        float, Option(help="Leave out matches below this probability, in [0, 1].")
    ] = 0.0,
    prior: Annotated[
        float | None,
        Option(
            help="Share of matches among candidates, in (0, 1). Default: by the copies that "
            "are there."
        ),
    ] = None,
    every: Annotated[
        bool, Option("--all", help="Also print the videos that do not match.")
    ] = False,
    folder: Annotated[
        str, Option("--in", help="Only videos of this folder of ids, SOURCE or SOURCE/FOLDER.")
    ] = "",
    incidents: Annotated[
        bool,
        Option(
            "--incidents",
            help="Rank by the trained network, which also finds other footage of an incident.",
        ),
    ] = False,
    explained: Annotated[
        str | None,
        Option(
            "--explain",
            metavar="ID",
            help="Instead: what is found of this video, why it is shown or not.",
        ),
    ] = None,
    out: OutOption = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Which videos of the collection contain footage of a query, at which second, and how sure? The
    best come first.

    A search always ranks; the verdicts say what to believe: match, unsure, no match. That nothing
    was found is an answer; a query that cannot be used is a row with an error.
    """
    from hapvr.scorer.access import ANY_HOST, Access, limits_from_environment
    from hapvr.search.match import Part, answer_table, answer_values
    from hapvr.steps.explanation import explain
    from hapvr.steps.searcher import Searcher, SearchOptions, answer_or_error

    _check_search(queries, ids, out, explained)
    part = Part.named(at, from_, to)
    options = SearchOptions(
        part=part,
        top=top,
        min_probability=min_probability,
        prior=prior,
        folder=folder,
        incidents=incidents,
    )
    names = expand(queries or [])
    project = open_project(config, set_)
    searcher = Searcher.open(project, model=model)
    limits = limits_from_environment(project.config.serving)
    # A person who types an address may fetch it.
    read = partial(searcher.read, access=Access(hosts=frozenset({ANY_HOST})), limits=limits)
    asked = [(name, partial(read, name)) for name in names]
    asked += [(video_id, partial(searcher.read_id, video_id)) for video_id in ids or []]
    if explained is not None:
        explanations = [explain(searcher, query(), explained, options) for _, query in asked]
        text = [line for lines in explanations for line in lines]
        return show({"config": str(config), "explanations": explanations}, text=text)

    answers: list[SearchAnswer] = []
    with progress_bar("queries") as progress:
        for number, (name, query) in enumerate(asked):
            progress(number, len(asked))
            answers.append(answer_or_error(name, lambda _: searcher.answer(query(), options)))  # noqa: B023  # at once

    text = [line for answer in answers for line in answer_lines(answer, every=every)]
    try:
        result = {"config": str(config), "queries": answer_values(answers)}
        show(result, text=text, failed=any(answer.error for answer in answers))
    finally:  # the answers are shown where they cannot be written
        if out is not None:
            _write(out, answer_table(answers), _pairs_of(answers), searcher)


def _check_search(
    queries: list[str] | None, ids: list[str] | None, out: Path | None, explained: str | None
) -> None:
    """Raise ArgumentError for a call without a query, or with options that exclude each other."""
    if not queries and not ids:
        raise ArgumentError(
            "search: wanted a file, URL or picture, or --id for a video of the collection"
        )
    _check_out(out)
    if out is not None and explained is not None:
        raise ArgumentError("search: --explain writes no file; wanted --explain or --out")


def _pairs_of(answers: Sequence[SearchAnswer]) -> list[Pair]:
    """Each query with each of its matches."""
    return [
        (match.query, match.reference, match.verdict, match.probability)
        for answer in answers
        for match in answer.matches
    ]


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
    from hapvr.steps.duplicates import make_duplicate_pairs
    from hapvr.steps.searcher import UNSURE, Searcher

    _check_out(out)
    terminal.require_outside(plan)
    if plan is not None and (pairs or plan == out or plan.suffix.lower() not in SUFFIXES):
        raise ArgumentError(
            "--plan: wanted a name that ends in .json, .csv or .sh, other than --out, and "
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
    named = f"{searcher.model}{', untrained' * searcher.untrained}"
    text = [f"model    {named}", *(f"warning  {warning}" for warning in warnings), *answer.text]
    if out is not None:
        _write(out, answer.rows, answer.tasks, searcher)
    said = {"model": searcher.model, "untrained": searcher.untrained, "warnings": warnings}
    kind = "pairs" if pairs else "groups"
    show({kind: answer.rows.to_pylist(), **said}, text=text)


@dataclass(frozen=True)
class _Answer:
    """What `hapvr duplicates` found, as a table, lines for people, and tasks of Label Studio."""

    rows: pa.Table
    text: list[str]
    tasks: list[Pair]


def _unknown_folders(searcher: Searcher, between: tuple[str, str] | None) -> list[str]:
    """A warning for each folder of --between in which no video is."""
    from hapvr.search.match import printable
    from hapvr.video.sources import is_inside

    known = searcher.collection.shard_of
    return [
        f"no video of the collection has the id {printable(folder)} or is in that folder"
        for folder in between or ()
        if not any(is_inside(video_id, folder) for video_id in known)
    ]


def _are_between(ids: Sequence[str], between: tuple[str, str] | None) -> bool:
    """Whether two different ones of these videos are in the two folders that are asked about."""
    from hapvr.video.sources import is_inside

    if between is None:
        return True
    first, second = ({name for name in ids if is_inside(name, folder)} for folder in between)
    return bool(first and second) and len(first | second) > 1


def _pair_answer(project: Project, searcher: Searcher, between: tuple[str, str] | None) -> _Answer:
    from hapvr.search.duplicates import pair_table
    from hapvr.steps.duplicates import duplicate_pairs

    least = project.config.search.min_duplicate_probability
    found = duplicate_pairs(project, searcher, min_probability=least)
    found = [pair for pair in found if _are_between((pair.first, pair.second), between)]
    rows = _with_verdicts(pair_table(found), [pair.verdict for pair in found])
    tasks: list[Pair] = [
        (pair.first, pair.second, pair.verdict, pair.probability) for pair in found
    ]
    return _Answer(rows, _pair_lines(found), tasks)


def _group_answer(
    project: Project,
    searcher: Searcher,
    between: tuple[str, str] | None,
    plan: Path | None,
) -> _Answer:
    """plan: is written, too."""
    from hapvr.search.duplicates import group_rows
    from hapvr.search.plan import write_plan
    from hapvr.steps.duplicates import make_duplicate_groups, remember_plan

    members: list[GroupMember] = []
    made = make_duplicate_groups(project, searcher)
    for _, group in groupby(made, key=lambda member: member.group):
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


def watch(config: ConfigOption, set_: SetOption = None) -> None:
    """Compare the queries of `watch.lists` with shards that are new, list all matches, and post
    those that wait.

    The exit code is 1 if a query cannot be read, or if the webhook did not take a match.
    """
    from hapvr.steps.alerts import deliver_alerts
    from hapvr.steps.search_model import index_warning
    from hapvr.steps.searcher import Searcher
    from hapvr.steps.watch_lists import (
        all_matches,
        make_watch_matches,
        unwatched_shards,
        watch_lists,
    )

    project = open_project(config, set_)
    if not watch_lists(project):
        raise ConfigError(
            "watch.lists: there is no watch list; see docs/search.md, section watch lists"
        )
    keys = list(unwatched_shards(project))
    failed: dict[str, str] = {}
    if keys:
        searcher = Searcher.open(project)
        for key in keys:
            with progress_bar(key) as progress:
                failed |= make_watch_matches(project, searcher, key, progress=progress).failed
    delivery = deliver_alerts(project)
    rows = all_matches(project)
    warning = index_warning(project)
    lines = [f"{len(keys)} shards compared, {len(rows)} matches"]
    lines += [f"model    {model}" for model in sorted({row["model"] for row in rows})]
    if warning:
        lines.append(f"warning  {warning}")
    lines += map(watched_line, rows)
    lines += [f"failed   {name}: {reason}" for name, reason in sorted(failed.items())]
    if project.config.watch.webhook is not None:
        problem = f"; {delivery.problem}" if delivery.problem else ""
        lines.append(f"{delivery.delivered} matches posted, {delivery.waiting} wait{problem}")
    result = {
        "shards": keys,
        "matches": rows,
        "failed": failed,
        "posted": delivery.delivered,
        "waiting": delivery.waiting,
        "warning": warning,
    }
    show(result, text=lines, failed=bool(failed or delivery.problem))


def serve(
    config: ConfigOption,
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    host: Annotated[str, Option(help="The address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[
        bool, Option("--allow-remote", help="Really listen where others reach it.")
    ] = False,
    token_file: Annotated[
        Path | None, Option(help="Who may ask: lines of name, read or mark, SHA-256.")
    ] = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Serve searches and their page until it is interrupted. The address is printed first."""
    from hapvr.serving.server import Server

    project = open_project(config, set_)
    server = Server(
        project, host=host, port=port, allow_remote=allow_remote, token_file=token_file, model=model
    )
    show({"address": server.address}, text=f"Search: {server.address}")
    server.run()


def _check_out(out: Path | None) -> None:
    terminal.require_outside(out)
    if out is None or out.name.endswith(TASKS_SUFFIX):
        return
    if out.suffix.lower() not in OUT_SUFFIXES:
        wanted = ", ".join((*OUT_SUFFIXES, TASKS_SUFFIX))
        raise ArgumentError(
            f"--out is {str(out)!r:.200}; wanted a name that ends in one of {wanted}"
        )


def _write(out: Path, rows: pa.Table, pairs: Sequence[Pair], searcher: Searcher) -> None:
    """Write rows as a table, or pairs as tasks of Label Studio, by the suffix."""
    from hapvr.files import write_atomic
    from hapvr.search.marks import label_studio_tasks
    from hapvr.tables import export_table

    def path_of(name: str) -> Path | None:
        path = searcher.collection.metadata.of(name).path
        if path is None and Path(name).is_file():
            return Path(name).resolve()
        return path

    def whole(name: str) -> str:  # marks may be imported in another folder
        return name if searcher.collection.metadata.of(name).path else str(Path(name).resolve())

    with write_atomic(out) as part:
        if not out.name.endswith(TASKS_SUFFIX):
            export_table(rows, part, out.suffix.lower())
            return
        named = [
            (whole(first), whole(second), verdict, probability)
            for first, second, verdict, probability in pairs
        ]
        tasks = label_studio_tasks(named, path_of)
        num_skipped = len(pairs) - len(tasks)
        if num_skipped:
            warn(f"{out}: {num_skipped} pairs are skipped, as a video of theirs has no file here")
        part.write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")


def _group_lines(members: list[GroupMember]) -> list[str]:
    from hapvr.search.plan import needless

    groups = [list(group) for _, group in groupby(members, key=lambda member: member.group)]
    unsure = [group for group in groups if any(one.verdict == "unsure" for one in group)]
    lines = [f"{len(groups)} groups of copies, {len(needless(members))} files more than needed"]
    if unsure:
        lines.append(
            f"{len(unsure)} of the groups are unsure: look at them before you delete anything"
        )
    for group in groups:
        verdicts = [member.verdict for member in group if member.verdict]
        verdict = "unsure" if "unsure" in verdicts else verdicts[-1]
        lines.append(f"group {group[0].group}, {len(group)} videos: {verdict}")
        has_kept = any(member.keep for member in group)
        if not has_kept:  # the reason is that of all
            lines.append(f"  {group[0].reason}")
        lines += [_member_line(member, group[0], with_reason=has_kept) for member in group]
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
    from hapvr.search.match import chance

    counts = Counter(pair.kind for pair in pairs)
    lines = [
        f"{len(pairs)} pairs: "
        f"{', '.join(f'{number} {kind}' for kind, number in sorted(counts.items()))}"
    ]
    return lines + [
        f"{pair.kind:<13}  {pair.verdict or '':<8}  {chance(pair.probability)}  "
        f"{pair.first} ({100 * pair.first_covered:.0f} %) - {pair.second} "
        f"({100 * pair.second_covered:.0f} %)"
        f"{'  the same file' * pair.same_file}{'  marked as a match' * bool(pair.mark)}"
        for pair in pairs
    ]
