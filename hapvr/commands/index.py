"""`hapvr index add | build | update | status`, the index that searches use; and `hapvr pairs mark |
unmark | list | import`, what people know about pairs, which searches and duplicates respect."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from hapvr.commands import terminal
from hapvr.commands.terminal import (
    ConfigOption,
    SetOption,
    Verbs,
    counted,
    open_project,
    progress_bar,
    show,
)

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
    """Make folders of videos searchable: decode, describe, index, find copies. Repeat it when files
    have come or gone."""
    from hapvr.collection import add_folders, network_notice, update_collection
    from hapvr.search.plan import needless
    from hapvr.steps.duplicates import set_aside

    project = add_folders(data, folders or [], exclude or [])
    videos, copies = update_collection(project, progress_bar)
    groups = len({one.group for one in copies or ()})
    failed = [row for row in videos if row["status"] != "ok"]
    usable = len(videos) - len(failed)
    aside = set_aside(project, [row["video_id"] for row in failed])
    lost = [row for row in failed if row["video_id"] not in aside]
    said = ("video_id", "status", "reason", "message")
    unusable = [{name: row[name] for name in said} for row in lost]
    result = {"data": project.root.url, "videos": usable, "unusable": unusable}
    result |= {"set_aside": len(aside), "groups": None if copies is None else groups}
    named = "" if data == terminal.default_collection() else f" --data {data}"
    lines = [f"{counted(usable, 'video')} can be searched; the collection is {project.root.url}"]
    lines += [f"cannot be used: {row['video_id']}: {row['message']}" for row in lost]
    partly = [row for row in videos if row["status"] == "ok" and row["message"]]
    lines += [f"only a part can be read: {row['video_id']}: {row['message']}" for row in partly]
    text = f"{counted(groups, 'group')} of copies"
    if copies is None:
        text = "too few videos to say how sure an answer is, and to look for copies: add more"
    elif copies:
        text += (
            f", with {counted(len(needless(copies)), 'file')} more than needed: `hapvr "
            f"duplicates{named}`"
        )
    if aside:
        lines.append(f"{counted(len(aside), 'video')} set aside by a plan")
    notice = network_notice(project)
    if notice:
        lines.append(f"notice: {notice}")
    lines += [text, f"next: `hapvr search CLIP{named}`, or `hapvr serve{named}` for the page"]
    show(result, text=lines)


@app.command("build")
def build(config: ConfigOption, set_: SetOption = None, model: ModelOption = None) -> None:
    """Build another index from all features; the present one answers until the new one has passed
    its check."""
    _update(config, set_, model, rebuild=True)


@app.command("update")
def update(config: ConfigOption, set_: SetOption = None, model: ModelOption = None) -> None:
    """Take in shards that are new or were made again, or go on with a build that was
    interrupted."""
    _update(config, set_, model, rebuild=False)


@app.command("status")
def status(config: ConfigOption, set_: SetOption = None) -> None:
    """What the index holds, which model it is of, and which shards it does not have yet."""
    from hapvr.data.features import collection_shards
    from hapvr.search.collection import current_index

    project = open_project(config, set_)
    current = current_index(project.root)
    held = current.open(project.root, project.config.search).status()
    finished, awaited = collection_shards(project.root)
    missing = [key for key in finished if key not in held.shards]
    _show({**asdict(held), **asdict(current), "missing": missing, "awaited": list(awaited)})


def _update(config: Path, set_: list[str] | None, model: str | None, *, rebuild: bool) -> None:
    from hapvr.steps.search_index import update_index
    from hapvr.steps.search_model import search_model

    project = open_project(config, set_)
    chosen = search_model(project, model)
    with progress_bar("shards") as progress:
        made = update_index(project, chosen, rebuild=rebuild, progress=progress)
    of_model = {
        "model": chosen.uri,
        "digest": chosen.digest,
        "place": made.serving.place if made.serving else None,
    }
    _show(
        {
            **asdict(made.status),
            **of_model,
            **made.shards,
            "recall": made.recall,
            "passed": made.passed,
        }
    )


def _show(found: dict[str, Any]) -> None:
    """What an index holds, and what of its shards changed or is missing; it failed where it did not
    pass its check."""
    from hapvr.search.index import MIN_RECALL

    passed, unindexed = (
        found.get("passed", True),
        f", {found['unindexed_frames']} of them" if found["parts"] else ",",
    )
    rest = (
        f"{unindexed} compared one by one, of {len(found['shards'])} shards in "
        f"{counted(found['fragments'], 'fragment')}"
    )
    lines = [
        f"model    {found['model']} (network {found['digest']})",
        f"holds    {found['videos']} videos with {found['frames']} frames{rest}",
        f"recall   {100 * found['recall']:.1f} % of exact neighbours at the last check",
    ]
    names = ("added", "replaced", "removed", "missing", "awaited")
    lines += [f"{name:<8} {key}" for name in names for key in found.get(name, ())]
    if not passed:
        wanted = f"wanted {100 * MIN_RECALL:g} % of recall, so this index does not answer"
        lines.append(
            f"failed   {wanted}; raise search.index.probed_lists, refine_factor or code_bits"
        )
    show(found, text=lines, failed=not passed)


@pairs.command("mark")
def mark(
    one: VideoArgument,
    other: VideoArgument,
    said: Annotated[
        Literal["match", "not-a-match"], Argument(help="Whether the two show the same footage.")
    ],
    config: ConfigOption,
) -> None:
    """Say that two videos match, or that they do not; it replaces what was said before, and
    `unmark` takes it back."""
    from hapvr.search import marks

    made = marks.mark(
        open_project(config).root, one, other, "match" if said == "match" else "not_a_match"
    )
    show(asdict(made), text=[f"{one} and {other} are marked as {said}"])


@pairs.command("unmark")
def unmark(one: VideoArgument, other: VideoArgument, config: ConfigOption) -> None:
    """Take back what was said about two videos."""
    from hapvr.search import marks

    gone = marks.unmark(open_project(config).root, one, other)
    text = (
        f"{one} and {other} had no mark"
        if gone is None
        else f"{one} and {other} are no longer marked"
    )
    show({"removed": None if gone is None else asdict(gone)}, text=[text])


@pairs.command("list")
def list_(
    config: ConfigOption,
    out: Annotated[
        Path | None, Option(help="Also write them to a CSV file, which `import` reads.")
    ] = None,
) -> None:
    """All marks, the oldest first, with the names that the videos had then."""
    from hapvr.search.marks import read_marks, write_marks

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
    """Keep the marks of a CSV file, all or none; they replace what was said before of the same
    pairs."""
    from hapvr.search.marks import keep_marks, read_marks_table

    root = open_project(config).root
    made = read_marks_table(root, file)
    before = keep_marks(root, made)
    new = sum(before.of(one.first, one.second) is None for one in made)
    show({"marks": len(made), "new": new}, text=f"{len(made)} marks are kept, {new} of them new")
