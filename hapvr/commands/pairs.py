"""`hapvr pairs mark | unmark | list | import`: what people know about pairs, which searches and duplicates respect."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from hapvr.commands.terminal import ConfigOption, Verbs, open_project, show

app = Verbs(name="pairs", no_args_is_help=True, help="Marks on pairs of videos, kept by the content of the files.")
VideoArgument = Annotated[str, Argument(help="The id of a video of the collection, a file, or a SHA-256.")]


@app.command("mark")
def mark(
    one: VideoArgument,
    other: VideoArgument,
    said: Annotated[Literal["match", "not-a-match"], Argument(help="Whether the two show the same footage.")],
    config: ConfigOption,
) -> None:
    """Say that two videos match, or that they do not; it replaces what was said before, and `unmark` takes it back."""
    from hapvr.search import marks

    made = marks.mark(open_project(config).root, one, other, "match" if said == "match" else "not_a_match")
    show(asdict(made), text=f"{one} and {other} are marked as {said}")


@app.command("unmark")
def unmark(one: VideoArgument, other: VideoArgument, config: ConfigOption) -> None:
    """Take back what was said about two videos."""
    from hapvr.search import marks

    gone = marks.unmark(open_project(config).root, one, other)
    text = f"{one} and {other} had no mark" if gone is None else f"{one} and {other} are no longer marked"
    show({"removed": None if gone is None else asdict(gone)}, text=text)


@app.command("list")
def list_(
    config: ConfigOption,
    out: Annotated[Path | None, Option(help="Also write them to a CSV file, which `import` reads.")] = None,
) -> None:
    """All marks, the oldest first, with the names that the videos had then."""
    from hapvr.search.marks import read_marks, write_marks

    marks = read_marks(open_project(config).root)
    if out is not None:
        write_marks(marks, out)
    rows = marks.rows()
    lines = [f"{row.since}  {row.verdict.replace('_', '-'):<11}  {' - '.join(row.names)}  ({row.by})" for row in rows]
    show({"marks": [asdict(row) for row in rows]}, text="\n".join(lines) or "no pair is marked")


@app.command("import")
def import_(
    file: Annotated[Path, Argument(help="CSV with the columns first, second (id, file or SHA-256) and verdict.")],
    config: ConfigOption,
) -> None:
    """Keep the marks of a CSV file, all or none; they replace what was said before of the same pairs."""
    from hapvr.search.marks import keep_marks, read_marks_table

    root = open_project(config).root
    made = read_marks_table(root, file)
    before = keep_marks(root, made)
    new = sum(before.of(one.first, one.second) is None for one in made)
    show({"marks": len(made), "new": new}, text=f"{len(made)} marks are kept, {new} of them new")
