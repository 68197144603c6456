"""`hapvr search`, `watch` and `serve`: what contains footage of a query, what watch lists find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hapvr.commands.answers import answer_lines, watched_line
from hapvr.commands.outputs import TASKS_SUFFIX, OutOption, check_out, write_out, write_table
from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.scoring import expand
from hapvr.commands.terminal import (
    ConfigOption,
    IndexModelOption,
    SetOption,
    counted,
    open_project,
    show,
)
from hapvr.errors import ArgumentError, ConfigError, ServiceError
from hapvr.search import DEFAULT_TOP
from hapvr.serving.settings import MAX_AT_ONCE

if TYPE_CHECKING:
    from hapvr.search.label_studio import Pair
    from hapvr.search.match import Query, SearchAnswer
    from hapvr.search.options import SearchOptions
    from hapvr.steps.searcher import Searcher


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
            help="Share of matches in (0, 1), of searches or candidates as the answer says. "
            "Default: half of the searches have one."
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
    service: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Let a running `hapvr serve` answer, from its own collection; files are sent to "
            "it. HAPVR_TOKEN: a token, where it asks for one.",
        ),
    ] = None,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Which videos of the collection contain footage of a query, at which second, and how sure? The
    best come first.

    A search always ranks; the verdicts say what to believe: match, unsure, no match. That nothing
    was found is an answer; a query that cannot be used is a row with an error.
    """
    from hapvr.search.match import Part, answer_table
    from hapvr.search.options import SearchOptions

    _check_search(queries, ids, out, explained)
    options = SearchOptions(
        part=Part.named(at, from_, to),
        top=top,
        min_probability=min_probability,
        prior=prior,
        folder=folder,
        incidents=incidents,
    )
    names = expand(queries or [])
    if service is not None:
        _check_of_service(out, explained, model, set_)
        return _search_service(service, names, ids or [], options, every=every, out=out)

    from hapvr.scorer.access import ANY_HOST, Access, limits_from_environment
    from hapvr.steps.explanation import explain
    from hapvr.steps.searcher import Searcher

    project = open_project(config, set_)
    searcher = Searcher.open(project, model=model)
    limits = limits_from_environment(project.config.serving)
    # A person who types an address may fetch it.
    read = partial(searcher.read, access=Access(hosts=frozenset({ANY_HOST})), limits=limits)
    asked = [(name, partial(read, name)) for name in names]
    asked += [(video_id, partial(searcher.read_id, video_id)) for video_id in ids or []]
    if explained is not None:
        searcher.collection.require_video(explained)  # reading a query may take long
        explanations = [
            explain(searcher, read_query(), explained, options) for _, read_query in asked
        ]
        text = list(chain.from_iterable(explanations))
        return show({"config": str(config), "explanations": explanations}, text=text)

    answers = _answers(
        [(name, partial(_answer, searcher, read_query, options)) for name, read_query in asked]
    )
    try:
        _show_answers(answers, {"config": str(config)}, every=every)
    finally:  # the answers are shown where they cannot be written
        if out is not None:
            write_out(out, answer_table(answers), _pairs_of(answers), searcher)


def _search_service(
    address: str,
    names: Sequence[str],
    ids: Sequence[str],
    options: SearchOptions,
    *,
    every: bool,
    out: Path | None,
) -> None:
    """Show, and write to a table, what a running service answers."""
    from hapvr.commands.search_service import SearchService
    from hapvr.search.match import answer_table

    service = SearchService.at(address, options)
    asked = [(name, partial(service.answer, name)) for name in names]
    asked += [(video_id, partial(service.answer_id, video_id)) for video_id in ids]
    answers = _answers(asked)
    try:
        _show_answers(answers, {"service": address}, every=every)
    finally:
        if out is not None:
            write_table(out, answer_table(answers))


def _answer(
    searcher: Searcher, read_query: Callable[[], Query], options: SearchOptions
) -> SearchAnswer:
    return searcher.answer(read_query(), options)


def _answers(asked: Sequence[tuple[str, Callable[[], SearchAnswer]]]) -> list[SearchAnswer]:
    """The answer to each query, by its name; an error where it cannot be used, and for the rest
    where a service goes away, so that what it has answered is shown. Raises ServiceError where it
    has answered nothing."""
    from hapvr.search.match import answer_or_error, without_answer

    answers: list[SearchAnswer] = []
    with progress_bar("queries") as progress:
        for name, answer in asked:
            progress(len(answers), len(asked))
            try:
                answers.append(answer_or_error(name, answer))
            except ServiceError as error:
                if not answers:
                    raise
                rest = asked[len(answers) :]
                return answers + [without_answer(left, str(error)) for left, _ in rest]

    return answers


def _show_answers(
    answers: Sequence[SearchAnswer], origin: Mapping[str, str], *, every: bool
) -> None:
    """Print answers. origin: of which collection they are. every: also videos that do not match."""
    from hapvr.search.match import answer_values

    text = list(chain.from_iterable(answer_lines(answer, every=every) for answer in answers))
    result = {**origin, "queries": answer_values(answers)}
    show(result, text=text, failed=any(answer.error for answer in answers))


def _check_search(
    queries: list[str] | None, ids: list[str] | None, out: Path | None, explained: str | None
) -> None:
    """Raise ArgumentError for a call without a query, or with options that exclude each other."""
    if not queries and not ids:
        raise ArgumentError(
            "search: expected a file, URL or picture, or --id for a video of the collection"
        )

    check_out(out)
    if out is not None and explained is not None:
        raise ArgumentError("search: --explain writes no file; expected --explain or --out")


def _check_of_service(
    out: Path | None, explained: str | None, model: str | None, values: list[str] | None
) -> None:
    """Raise ArgumentError for options that want the collection itself."""
    given = {
        "--explain": explained is not None,
        "--model": model is not None,
        "--set": bool(values),
        f"--out NAME{TASKS_SUFFIX}": out is not None and out.name.endswith(TASKS_SUFFIX),
    }
    refused = [option for option, is_given in given.items() if is_given]
    if refused:
        raise ArgumentError(
            f"search: {', '.join(refused)}: a service answers from its own collection and model; "
            "leave it out, or search without --service"
        )


def _pairs_of(answers: Sequence[SearchAnswer]) -> list[Pair]:
    """Each query with each of its matches."""
    return [
        (match.query, match.reference, match.verdict, match.probability)
        for answer in answers
        for match in answer.matches
    ]


def watch(config: ConfigOption, set_: SetOption = None) -> None:
    """Compare the queries of `watch.lists` with shards that are new, list all matches, and post
    those that wait.

    The exit code is 1 if there is no index, if a query cannot be read, or if the webhook did not
    take a match.
    """
    from hapvr.search.current import current_index
    from hapvr.steps.project import COLLECTION_FILE
    from hapvr.steps.search_model import index_warning
    from hapvr.steps.watch_lists import all_matches, clock_notes
    from hapvr.steps.watch_queries import watch_lists
    from hapvr.steps.watch_runs import run_watch_lists

    project = open_project(config, set_)
    if not watch_lists(project):
        of_collection = project.root.exists(COLLECTION_FILE)
        place = f"{project.root.url}/{COLLECTION_FILE}" if of_collection else "the configuration"
        raise ConfigError(
            "watch.lists: there is no watch list; *Watch for this clip* on the page makes one, and "
            f"so does a folder of clips that watch.lists names in {place}"
        )

    current_index(project.root)  # nothing would be compared
    run = run_watch_lists(project, progress_bar)
    delivery = run.delivery
    rows = all_matches(project)
    warning = index_warning(project)
    matches = counted(len(rows), "match", "matches")
    lines = [f"{counted(len(run.shards), 'shard')} compared, {matches} in all"]
    lines += [f"model    {model}" for model in sorted({row["model"] for row in rows})]
    if warning:
        lines.append(f"warning  {warning}")
    lines += map(watched_line, rows)
    notes = clock_notes(project)
    lines += [f"note     {note}" for note in notes]
    lines += [f"failed   {name}: {reason}" for name, reason in sorted(run.failed.items())]
    if project.config.watch.webhook is not None:
        problem = f"; {delivery.problem}" if delivery.problem else ""
        lines.append(f"{delivery.delivered} matches posted, {delivery.waiting} wait{problem}")

    result = {
        "shards": list(run.shards),
        "matches": rows,
        "failed": run.failed,
        "posted": delivery.delivered,
        "waiting": delivery.waiting,
        "warning": warning,
        "notes": notes,
    }
    show(result, text=lines, failed=bool(run.failed or delivery.problem))


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
    workers: Annotated[
        int,
        Option(
            min=1, max=MAX_AT_ONCE, help="Processes that search; 1: the serving process itself."
        ),
    ] = 1,
    model: IndexModelOption = None,
    set_: SetOption = None,
) -> None:
    """Serve searches and their page until it is interrupted. The address is printed first."""
    from hapvr.serving.server import Server

    project = open_project(config, set_)
    server = Server(
        project,
        host=host,
        port=port,
        allow_remote=allow_remote,
        token_file=token_file,
        model=model,
        workers=workers,
    )
    show({"address": server.address}, text=f"Search: {server.address}")
    server.run()
