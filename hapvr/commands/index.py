"""`hapvr index add | build | update | status`, the index that searches use; and `hapvr pairs mark |
unmark | list | import`, what people know about pairs, which searches and duplicates respect."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from hapvr.commands import terminal
from hapvr.commands.progress_bars import long_progress, progress_bar
from hapvr.commands.terminal import ConfigOption, SetOption, Verbs, counted, open_project, show
from hapvr.reasons import said_of

app = Verbs(
    name="index", no_args_is_help=True, help="The index of the collection, which searches use."
)
ModelOption = Annotated[
    str | None, Option("--model", help="A models:/ name or a folder. Default: the champion.")
]
pairs = Verbs(
    name="pairs",
    no_args_is_help=True,
    help="Marks on pairs of videos, kept by the content of the files.",
)
VideoArgument = Annotated[
    str, Argument(help="The id of a video of the collection, a file, or a SHA-256.")
]


@app.command("add")
def add(
    data: ConfigOption,
    folders: Annotated[
        list[Path] | None, Argument(help="Folders of videos; none: the known ones again.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Option(help="Files and folders that are not read, e.g. 'drafts' or '*.part.mp4'."),
    ] = None,
) -> None:
    """Make folders of videos searchable: decode, describe, index, find copies, compare with the
    watch lists. Repeat it when files have come or gone."""
    from hapvr.collection import add_folders, network_notice, update_collection
    from hapvr.search.plan import needless
    from hapvr.steps.planned_moves import set_aside
    from hapvr.steps.watch_lists import all_matches
    from hapvr.steps.watch_queries import watch_lists
    from hapvr.steps.watch_runs import run_watch_lists

    project = add_folders(data, folders or [], exclude or [])
    videos, copies = update_collection(project, long_progress)
    lists = [] if copies is None else watch_lists(project)
    problems: list[str] = []
    num_watched = 0
    if lists:
        problems = run_watch_lists(project, long_progress).problems
        num_watched = len(all_matches(project))

    usable = _with_status(videos, is_ok=True)
    failed = _with_status(videos, is_ok=False)
    aside = set_aside(project, [row["video_id"] for row in failed])
    lost = [row for row in failed if row["video_id"] not in aside]
    groups = None if copies is None else len({member.group for member in copies})
    result = {
        "data": project.root.url,
        "videos": len(usable),
        "unusable": list(map(_problem_of, lost)),
        "set_aside": len(aside),
        "groups": groups,
        "watch_lists": len(lists),
        "watched": num_watched,
        "watch_problems": problems,
    }

    data_option = "" if data == terminal.default_collection() else f" --data {data}"
    lines = [
        f"{counted(len(usable), 'video')} can be searched; the collection is {project.root.url}",
        *_problem_lines(usable, lost),
        *_aside_lines(len(aside)),
        *_notice_lines(network_notice(project)),
        _copies_text(groups, len(needless(copies or [])), data_option),
        *_watch_lines(len(lists), num_watched, problems, data_option),
        f"next: `hapvr search CLIP{data_option}`, or `hapvr serve{data_option}` for the page",
    ]
    show(result, text=lines)


def _with_status(videos: Sequence[Mapping[str, Any]], *, is_ok: bool) -> list[Mapping[str, Any]]:
    """The videos that can be used, or the others."""
    return [row for row in videos if (row["status"] == "ok") is is_ok]


def _problem_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("video_id", "status", "reason", "message")}


def _problem_lines(
    usable: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Videos that cannot be used, each with its reason in plain words, then those that can be in
    part, and what is to be noted. JSON has the technical causes."""
    lines = []
    for row in lost:
        reason = said_of(row["reason"] or "", row["message"])
        lines.append(f"cannot be used: {row['video_id']}: {reason}")

    for row in usable:
        if row["message"]:
            kind = "only a part can be read" if row.get("is_partial") else "note"
            lines.append(f"{kind}: {row['video_id']}: {row['message']}")

    return lines


def _aside_lines(num_aside: int) -> list[str]:
    return [f"{counted(num_aside, 'video')} set aside by a plan"] if num_aside else []


def _notice_lines(notice: str) -> list[str]:
    return [f"notice: {notice}"] if notice else []


def _watch_lines(
    num_lists: int, num_matches: int, problems: Sequence[str], data_option: str
) -> list[str]:
    """What the watch lists have found, where there are any, and what a person should know of
    it."""
    if not num_lists:
        return []
    finds = f"{counted(num_matches, 'find')} in all: `hapvr watch{data_option}`"
    lines = [f"{counted(num_lists, 'watch list')} compared, {finds}"]
    return lines + [f"watch lists: {problem}" for problem in problems]


def _copies_text(num_groups: int | None, num_needless: int, data_option: str) -> str:
    """How many groups of copies there are; None: too few videos to look for them."""
    if num_groups is None:
        return "too few videos to say how sure an answer is, and to look for copies: add more"
    text = f"{counted(num_groups, 'group')} of copies"
    if not num_groups:
        return text
    more = counted(num_needless, "file")
    return f"{text}, with {more} more than needed: `hapvr duplicates{data_option}`"


@app.command("build")
def build(config: ConfigOption, set_: SetOption = None, model: ModelOption = None) -> None:
    """Build another index from all features; the present one answers until the new one has passed
    its check."""
    _update(config, set_, model, rebuild=True)


@app.command("update")
def update(config: ConfigOption, set_: SetOption = None, model: ModelOption = None) -> None:
    """Take in shards that are new or were rebuilt, or go on with a build that was interrupted."""
    _update(config, set_, model, rebuild=False)


@app.command("status")
def status(config: ConfigOption, set_: SetOption = None) -> None:
    """What the index holds, which model it is of, and which shards it does not have yet."""
    from hapvr.data.features import collection_shards
    from hapvr.search.current import current_index
    from hapvr.search.video_index import open_videos

    project = open_project(config, set_)
    current = current_index(project.root)
    index_status = current.open(project.root, project.config.search).status()
    finished, awaited = collection_shards(project.root)
    missing = [key for key in finished if key not in index_status.shards]
    values = asdict(index_status) | asdict(current)
    videos = open_videos(project.root, current.place, project.config.search.index)
    if videos is not None:
        values["video_vectors"] = videos.status().frames
    _show(values | {"missing": missing, "awaited": list(awaited)})


def _update(config: Path, set_: list[str] | None, model: str | None, *, rebuild: bool) -> None:
    from hapvr.steps.search_index import update_index
    from hapvr.steps.search_model import search_model

    project = open_project(config, set_)
    chosen = search_model(project, model)
    with progress_bar("shards") as progress:
        update = update_index(project, chosen, rebuild=rebuild, progress=progress)
    values = asdict(update.status)
    values["model"] = chosen.uri
    values["digest"] = chosen.digest
    values["place"] = update.serving.place if update.serving else None
    values |= update.shards
    values["recall"] = update.recall
    values["passed"] = update.passed
    _show(values)


def _show(values: dict[str, Any]) -> None:
    """What an index holds, and what of its shards changed or is missing; it failed where it did not
    pass its check."""
    from hapvr.search.frame_index import MIN_RECALL

    compared_whole = f", {values['unindexed_frames']} of them" if values["parts"] else ","
    fragments = counted(values["fragments"], "fragment")
    lines = [
        f"model    {values['model']} (network {values['digest']})",
        f"holds    {values['videos']} videos with {values['frames']} frames{compared_whole} "
        f"compared one by one, of {len(values['shards'])} shards in {fragments}",
        f"recall   {100 * values['recall']:.1f} % of exact neighbours at the last check",
    ]
    for name in ("added", "replaced", "removed", "missing", "awaited"):
        lines += [f"{name:<8} {key}" for key in values.get(name, ())]
    passed = values.get("passed", True)
    if not passed:
        lines.append(
            f"failed   expected {100 * MIN_RECALL:g} % of recall, so this index does not answer; "
            "raise search.index.probed_lists, refine_factor or code_bits"
        )

    show(values, text=lines, failed=not passed)


@pairs.command("mark")
def mark(
    one: VideoArgument,
    other: VideoArgument,
    said: Annotated[
        Literal["match", "not-a-match"], Argument(help="Whether the two show the same footage.")
    ],
    config: ConfigOption,
) -> None:
    """Mark two videos as a match, or as none. This replaces an earlier mark, and `unmark` removes
    it."""
    from hapvr.search import marks

    verdict: marks.Verdict = "match" if said == "match" else "not_a_match"
    mark = marks.mark(open_project(config).root, one, other, verdict)
    show(asdict(mark), text=f"{one} and {other} are marked as {said}")


@pairs.command("unmark")
def unmark(one: VideoArgument, other: VideoArgument, config: ConfigOption) -> None:
    """Remove the mark of two videos."""
    from hapvr.search import marks

    removed = marks.unmark(open_project(config).root, one, other)
    if removed is None:
        show({"removed": None}, text=f"{one} and {other} had no mark")
    else:
        show({"removed": asdict(removed)}, text=f"{one} and {other} are no longer marked")


@pairs.command("list")
def list_(
    config: ConfigOption,
    out: Annotated[
        Path | None, Option(help="Also write them to a CSV file, which `import` reads.")
    ] = None,
) -> None:
    """All marks, the oldest first, with the names that the videos had then."""
    from hapvr.search.marks import read_marks
    from hapvr.search.marks_table import write_marks

    terminal.require_outside(out)
    marks = read_marks(open_project(config).root)
    if out is not None:
        write_marks(marks, out)
    rows = marks.rows()
    lines = [
        f"{row.since}  {row.verdict.replace('_', '-'):<11}  {' - '.join(row.names)}  ({row.by})"
        for row in rows
    ]
    show({"marks": [asdict(row) for row in rows]}, text=lines or "no pair is marked")


@pairs.command("import")
def import_(
    file: Annotated[
        Path, Argument(help="CSV with the columns first, second (id, file or SHA-256) and verdict.")
    ],
    config: ConfigOption,
) -> None:
    """Keep the marks of a CSV file, all or none. They replace earlier marks of the same pairs."""
    from hapvr.search.marks_table import import_marks

    marks, before = import_marks(open_project(config).root, file)
    num_new = sum(before.of(mark.first, mark.second) is None for mark in marks)
    text = f"{len(marks)} marks are kept, {num_new} of them new"
    show({"marks": len(marks), "new": num_new}, text=text)
