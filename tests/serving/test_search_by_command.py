"""`hapvr search --service`: a running service answers, and nothing is opened in the command."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hapvr.commands.search_service import TOKEN_VARIABLE
from hapvr.steps.duplicate_groups import make_duplicate_groups
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from tests.commands.conftest import called
from tests.conftest import run_python
from tests.scorer.bundles import write_scenes
from tests.serving.served import COPY, SHORT, Client, serving
from tests.serving.test_tokens import READ, written
from tests.steps.search_projects import LONG, copied


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seconds of a video of the collection, in a file whose name has all that needs quoting."""
    folder = tmp_path_factory.mktemp("query")
    return write_scenes(folder / "a & b? #1 ü.mp4", list(LONG[25:31]))


def without_folders(text: str, project: Project) -> str:
    """An answer that names the model by the last part of its path."""
    model = Path(Searcher.open(project).model)
    assert str(model) in text
    return text.replace(str(model), model.name)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--all", "--top", "3"],
        ["--at", "2"],
        ["--from", "1", "--to", "4.5", "--prior", "0.2"],
        ["--in", "in/trips", "--min-probability", "0.01"],
        ["--incidents"],
    ],
    ids=str,
)
def test_answers_are_those_of_a_search_without_a_service(
    client: Client, project: Project, clip: Path, options: list[str]
) -> None:
    """Of a file and of a video of the collection, word by word; a service shows no folder of the
    machine on which its model is."""
    words = ["search", clip, "--id", SHORT, *options]
    by_service = called(*words, "--service", client.address)
    alone = called(*words, "--config", project.folder / "config.yaml")
    assert by_service.code == 0, by_service.error
    assert by_service.out == without_folders(alone.out, project)


def test_values_for_programs_are_those_of_a_search_without_a_service(
    client: Client, project: Project, clip: Path
) -> None:
    by_service = called("search", clip, "--json", "--service", client.address)
    alone = called("search", clip, "--json", "--config", project.folder / "config.yaml")
    queries = json.loads(without_folders(alone.out, project))["queries"]
    assert by_service.json["queries"] == queries
    assert by_service.json["service"] == client.address


def test_a_service_assumes_as_many_copies_as_the_groups_have_by_now(
    collection: Path, tmp_path: Path
) -> None:
    """Somebody else looks for duplicates while it runs."""
    project = copied(collection, tmp_path)
    with serving(project) as client:
        before = called("search", "--id", SHORT, "--json", "--service", client.address)
        make_duplicate_groups(project, Searcher.open(project))
        after = called("search", "--id", SHORT, "--json", "--service", client.address)

    alone = called("search", "--id", SHORT, "--json", "--config", project.folder / "config.yaml")
    priors = [outcome.json["queries"][0]["prior"] for outcome in (before, after, alone)]
    assert priors[0] < priors[1] == priors[2]


def test_a_table_names_the_file_as_it_was_called(
    client: Client, clip: Path, tmp_path: Path
) -> None:
    """The service knows the last part of its name alone."""
    out = tmp_path / "rows.csv"
    assert called("search", clip, "--out", out, "--service", client.address).code == 0
    with out.open(encoding="utf-8", newline="") as file:
        assert {row["query_id"] for row in csv.DictReader(file)} == {str(clip)}


def test_a_search_that_takes_long_is_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
    outcome = called("search", "--id", SHORT, "--service", f"{client.address}/")
    assert outcome.code == 0
    assert COPY in outcome.out


def test_queries_that_cannot_be_used_are_rows(client: Client, clip: Path, tmp_path: Path) -> None:
    """The others are answered."""
    broken = tmp_path / "notes.mp4"
    broken.write_text("no video", encoding="utf-8")
    refused_url = "http://127.0.0.1:9/clip.mp4"
    words = ["search", clip, broken, refused_url, "--id", "in/nothing.mp4"]
    outcome = called(*words, "--json", "--service", client.address)
    assert outcome.code == 1
    errors = [query["error"].partition(":")[0] for query in outcome.json["queries"]]
    assert errors == ["", "not_video", "not_allowed", "unknown_id"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that no buffer of a connection holds."""
    file = tmp_path_factory.mktemp("large") / "large.mp4"
    file.write_bytes(bytes(20_000_000))
    return file


def test_who_has_no_token_learns_so_before_a_large_file_is_sent(readable: str, large: Path) -> None:
    outcome = called("search", large, "--service", readable)
    assert outcome.code == 2
    assert "answers to those with a token" in outcome.error


def test_a_file_that_is_too_large_for_the_service_costs_no_other_answer(
    collection: Path, clip: Path, large: Path, tmp_path: Path
) -> None:
    """It is not sent, since who is refused while sending may not learn why."""
    project = copied(collection, tmp_path, **{"serving.max_bytes": 10 * 2**20})
    with serving(project) as client:
        outcome = called("search", clip, large, clip, "--json", "--service", client.address)
    errors = [query["error"].partition(":")[0] for query in outcome.json["queries"]]
    assert errors == ["", "too_large", ""]


def test_names_that_are_not_utf_8_are_searched_for(
    client: Client, clip: Path, tmp_path: Path
) -> None:
    """As those of a file, of a video of the collection and of a folder."""
    odd = tmp_path / os.fsdecode(b"a\xff.mp4")
    odd.write_bytes(clip.read_bytes())
    words = ["search", odd, "--id", os.fsdecode(b"in/\xff"), "--json"]
    outcome = called(*words, "--service", client.address)
    errors = [query["error"].partition(":")[0] for query in outcome.json["queries"]]
    assert errors == ["", "unknown_id"]
    in_odd = called("search", clip, "--in", os.fsdecode(b"\xff"), "--service", client.address)
    assert "nothing found" in in_odd.out


@pytest.mark.parametrize(
    "options",
    [["--explain", SHORT], ["--model", "x"], ["--set", "a=1"], ["--out", "x.label-studio.json"]],
    ids=str,
)
def test_options_that_want_the_collection_are_refused(options: list[str], clip: Path) -> None:
    """With exit code 2, before the service is asked."""
    outcome = called("search", clip, *options, "--service", "http://127.0.0.1:9")
    assert outcome.code == 2
    assert options[0] in outcome.error
    assert "search without --service" in outcome.error


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:x",
        "http://127.0.0.1:0",
        "http://anna:secret@127.0.0.1:8000",
        "http://127.0.0.1/?x=1",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nx: y",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    """With exit code 2 and the form of one that is; logins are not repeated."""
    outcome = called("search", "--id", SHORT, "--service", address)
    assert outcome.code == 2
    assert "expected http(s)://HOST:PORT" in outcome.error
    assert "secret" not in outcome.error


@pytest.mark.parametrize(
    ("token", "code", "error"),
    [
        ("r", 0, ""),
        ("", 2, "answers to those with a token"),
        ("x", 2, "does not know the token"),
        ("ü", 2, "HAPVR_TOKEN: expected printable ASCII"),
        ("r\n", 2, "HAPVR_TOKEN: expected printable ASCII"),
    ],
    ids=ascii,
)
def test_a_token_comes_from_the_environment(
    readable: str, monkeypatch: pytest.MonkeyPatch, token: str, code: int, error: str
) -> None:
    """Never from the command line, which others on the machine see."""
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    outcome = called("search", "--id", SHORT, "--service", readable)
    assert outcome.code == code
    assert error in outcome.error


@pytest.fixture(scope="module")
def readable(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that answers to Ben."""
    folder = tmp_path_factory.mktemp("tokens of commands")
    with serving(copied(collection, folder), token_file=written(folder, READ)) as client:
        yield client.address


def test_a_command_that_asks_a_service_loads_nothing_that_searches(client: Client) -> None:
    """Imports alone would take longer than the service does."""
    heavy = {"hapvr.steps.searcher", "lance", "openvino", "pandas", "polars", "torch", "mlflow"}
    code = (
        "import atexit, sys; from hapvr.cli import main\n"
        f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules)))); main()"
    )
    output = run_python("-c", code, "search", "--id", SHORT, "--service", client.address)
    assert COPY in output
    assert output.endswith("[]\n")
