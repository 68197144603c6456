"""`hapvr search`: which videos of the collection contain footage of a query, where, and how sure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hapvr.commands.scoring import expand
from hapvr.commands.terminal import (
    FAILED,
    ConfigOption,
    IndexModelOption,
    JsonOption,
    SetOption,
    exit_codes,
    overrides,
    progress_bar,
    show,
)
from hapvr.search import DEFAULT_TOP

if TYPE_CHECKING:
    from hapvr.search.match import Match, SearchAnswer
    from hapvr.search.query import Part


@exit_codes
def search(
    config: ConfigOption,
    queries: Annotated[
        list[str] | None,
        typer.Argument(help="Videos or still pictures: files, http(s) URLs, folders, or .txt lists of these."),
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="A video of the collection as a query, by its id.")
    ] = None,
    top: Annotated[int, typer.Option(help="Matches per query, at most.")] = DEFAULT_TOP,
    at: Annotated[float | None, typer.Option(help="Only what the query shows at this second.")] = None,
    from_: Annotated[float | None, typer.Option("--from", help="Only from this second of the query on.")] = None,
    to: Annotated[float | None, typer.Option(help="Only up to this second of the query.")] = None,
    min_probability: Annotated[float, typer.Option(help="Leave out matches below this probability, in [0, 1].")] = 0.0,
    prior: Annotated[
        float | None,
        typer.Option(help="Share of matches among the pairs asked about, in (0, 1). Default: as in the calibration."),
    ] = None,
    segments: Annotated[bool, typer.Option(help="Also say which parts match.")] = True,
    folder: Annotated[
        str, typer.Option("--in", help="Only videos whose id begins so, e.g. SOURCE or SOURCE/FOLDER.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Also write the matches to a .csv, .parquet, .json or .html file.")
    ] = None,
    as_json: JsonOption = False,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Which videos of the collection contain footage of a query, at which second, and how sure? The best come first.

    A search always ranks. That nothing was found is an answer; a query that cannot be used is a row with an error.
    """
    from hapvr.errors import ArgumentError
    from hapvr.scorer.access import ANY_HOST, Access
    from hapvr.search.match import answer_table, answer_values
    from hapvr.steps.searcher import Searcher, SearchOptions, answer_or_error
    from hapvr.tables import export_table

    if not queries and not ids:
        raise ArgumentError("search: wanted a file, URL or picture, or --id for a video of the collection")
    check_out(out, ".csv", ".parquet", ".json", ".html")
    options = SearchOptions(
        part=_part(at, from_, to),
        top=top,
        min_probability=min_probability,
        prior=prior,
        segments=segments,
        folder=folder,
    )
    names = expand(queries or [])
    searcher = Searcher.open(config, overrides=overrides(set_), model=model)
    # a person who types an address may fetch it
    access = Access(hosts=frozenset({ANY_HOST}))
    asked: list[tuple[str, Callable[[str], SearchAnswer]]] = [
        *((name, lambda one: searcher.search(one, options, access=access)) for name in names),
        *((video_id, lambda one: searcher.search_id(one, options)) for video_id in ids or []),
    ]
    answers: list[SearchAnswer] = []
    with progress_bar("queries") as progress:
        for number, (name, ask) in enumerate(asked):
            progress(number, len(asked))
            answers.append(answer_or_error(name, ask))
    values = answer_values(answers)
    if out is not None and out.suffix.lower() == ".json":
        write_out(out, lambda part: part.write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8"))
    elif out is not None and out.suffix.lower() == ".html":
        write_out(out, lambda part: part.write_text(searcher.page(answers), encoding="utf-8"))
    elif out is not None:
        write_out(out, lambda part: export_table(answer_table(answers), part, out.suffix.lower()))
    result = {"config": str(config), "queries": values}
    show(result, as_json=as_json, text="\n".join(line for answer in answers for line in _lines(answer)))
    if any(answer.error for answer in answers):
        raise typer.Exit(FAILED)


def check_out(out: Path | None, *suffixes: str) -> None:
    """Raise ArgumentError for an `--out` of another kind of file."""
    from hapvr.errors import ArgumentError

    if out is not None and out.suffix.lower() not in suffixes:
        raise ArgumentError(f"--out is {str(out)!r:.200}; wanted a name that ends in {', '.join(suffixes)}")


def write_out(out: Path, write: Callable[[Path], Any]) -> None:
    """Write the file of `--out` whole, or not at all. Raises DataError where it cannot be written."""
    from hapvr.errors import DataError
    from hapvr.files import write_atomic

    try:
        with write_atomic(out) as part:
            write(part)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error}); correct the path or its permissions") from error


def _part(at: float | None, from_: float | None, to: float | None) -> Part | None:
    """The part of the query that the options name. Raises ArgumentError."""
    from hapvr.errors import ArgumentError
    from hapvr.search.query import Part

    if at is not None and (from_ is not None or to is not None):
        raise ArgumentError("--at and --from/--to: wanted one of the two")
    if at is not None:
        return Part.around(at)
    return None if from_ is None and to is None else Part(start_s=from_ or 0.0, end_s=to)


def _lines(answer: SearchAnswer) -> list[str]:
    """What a person reads of one query."""
    from hapvr.scorer.segments import clock

    if answer.error:
        return [f"failed   {answer.query}: {answer.error}"]
    lines = [
        f"query    {answer.query} ({clock(answer.seconds)}), compared with {answer.compared} of {answer.videos} videos"
    ]
    lines += [f"warning  {warning}" for warning in answer.warnings]
    if not answer.matches:
        return [*lines, "         nothing found"]
    if answer.prior is not None:
        lines.append(f"         probabilities hold where {100 * answer.prior:.3g} % of the pairs match")
    for match in answer.matches:
        lines += _match_lines(match)
    return lines


def _match_lines(match: Match) -> list[str]:
    from hapvr.scorer.segments import clock

    chance = "        " if match.probability is None else f"{100 * match.probability:6.1f} %"
    marked = "  marked as a match" if match.mark else ""
    shown = ""
    if match.query_covered is not None and match.reference_covered is not None and match.segments:
        shown = f"  covers {100 * match.query_covered:.0f} % of the query, {100 * match.reference_covered:.0f} % of the video"
    lines = [f"{match.rank:>4}  {chance}  {match.similarity:+.3f}  {match.reference}{shown}{marked}"]
    lines += [
        f"                        query {clock(part.query_start_s)}-{clock(part.query_end_s)} = "
        f"{clock(part.reference_start_s)}-{clock(part.reference_end_s)}  (frame similarity {part.score:.2f})"
        for part in match.segments
    ]
    return lines
