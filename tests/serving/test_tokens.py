"""Bearer tokens: who may read, who may mark, and what a token file must be like."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hapvr.errors import ConfigError
from hapvr.serving.service import read_tokens
from tests.serving.served import Client, serving
from tests.steps.search_projects import copied

SHORT = "in/short.mp4"
COPY = "in/trips/copy of short.mp4"
READ = f"ben read {sha256(b'r').hexdigest()}"
MARK = f"anna mark {sha256(b'm').hexdigest()}"


def written(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    file = folder / "tokens"
    file.write_text("\n".join(lines), encoding="utf-8")
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    ("lines", "mode", "said"),
    [
        ([READ], 0o644, "run `chmod 600 "),
        ([READ], 0o620, "run `chmod 600 "),
        ([READ, "my secret token"], 0o600, "line 2: expected a name, `read` or `mark`"),
        ([READ.replace("read", "admin")], 0o600, "line 1: expected"),
        ([READ.upper()], 0o600, "line 1: expected"),
        ([READ, MARK.split()[0] + " mark " + READ.split()[2]], 0o600, "of each token once"),
    ],
    ids=str,
)
def test_a_wrong_token_file_is_refused(
    tmp_path: Path, lines: list[str], mode: int, said: str
) -> None:
    """In one sentence, which does not show the line: it may be a token."""
    with pytest.raises(ConfigError) as refusal:
        read_tokens(written(tmp_path, *lines, mode=mode))
    assert said in str(refusal.value)
    assert "secret" not in str(refusal.value)
    with pytest.raises(ConfigError, match="it cannot be read"):
        read_tokens(tmp_path)


@pytest.fixture(scope="module")
def nobody(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Who has no token, of a service that Ben may read and Anna may mark."""
    folder = tmp_path_factory.mktemp("tokens")
    tokens = written(folder, READ, "# comment", MARK)
    with serving(copied(collection, folder), token_file=tokens) as client:
        yield client


@pytest.fixture
def ben(nobody: Client) -> Client:
    return replace(nobody, token="r")


@pytest.fixture
def anna(nobody: Client) -> Client:
    return replace(nobody, token="m")


@pytest.fixture(params=["", "x", sha256(b"r").hexdigest()], ids=["none", "wrong", "a digest"])
def stranger(nobody: Client, request: pytest.FixtureRequest) -> Client:
    return replace(nobody, token=request.param)


MARKED = {"query": SHORT, "reference": COPY, "mark": "match"}


@pytest.mark.parametrize(
    "path",
    [
        "/index",
        "/videos",
        "/pairs",
        "/duplicates",
        "/metrics",
        f"/media/{SHORT}",
        "/jobs/x",
        "/query-pictures/x",
        "/watch-pictures/x",
        "/collection",
    ],
)
def test_nothing_is_read_without_a_token(stranger: Client, path: str) -> None:
    refused = stranger.get(path)
    assert refused.status == 401
    assert refused.json["code"] == "no_token"
    assert refused.headers["www-authenticate"] == "Bearer"


def test_a_token_that_is_not_known_is_told_from_none(stranger: Client) -> None:
    refused = replace(stranger, token="mistyped").get("/index")
    assert refused.status == 401
    assert "does not know the token that was sent" in refused.json["error"]


def test_nothing_is_searched_or_marked_without_a_token(stranger: Client) -> None:
    assert stranger.search(id=SHORT).status == 401
    assert stranger.ask("PATCH", "/pairs", body=MARKED).status == 401


@pytest.mark.parametrize("path", ["/", "/main.js", "/health"])
def test_the_page_and_probes_are_for_all(stranger: Client, path: str) -> None:
    assert stranger.get(path).status == 200


def test_a_reader_searches_and_all_are_told_that_the_service_is_ready(
    nobody: Client, ben: Client
) -> None:
    """The first search opens the index."""
    assert ben.search(id=SHORT, top=1).status == 200
    assert nobody.get("/ready").status == 200


@pytest.mark.parametrize(
    ("method", "path", "values"),
    [
        ("PATCH", "/pairs", {"body": MARKED}),
        ("POST", "/duplicates/job", {}),
        ("POST", "/watch", {"job": "x"}),
        ("POST", "/watch/job", {}),
        ("DELETE", "/watch/x", {}),
        ("POST", "/collection/job", {}),
    ],
)
def test_a_reader_changes_nothing(
    ben: Client, method: str, path: str, values: dict[str, Any]
) -> None:
    refused = ben.ask(method, path, **values)
    assert refused.status == 403
    assert refused.json["code"] == "wrong_role"


def test_the_state_says_what_the_caller_may_do(ben: Client, anna: Client) -> None:
    """So that a page offers readers nothing that would be refused."""
    assert ben.get("/index").json["may_mark"] is False
    assert anna.get("/index").json["may_mark"] is True


def test_a_mark_has_the_name_of_who_made_it(ben: Client, anna: Client) -> None:
    assert anna.ask("PATCH", "/pairs", body=MARKED).status == 200
    assert [row["by"] for row in ben.get("/pairs").json["marks"]] == ["anna"]
    (match,) = ben.search(id=SHORT, top=1).json["answer"]["matches"]
    assert match["mark"] == "match"
    assert match["marked_by"] == "anna"


def test_a_table_has_the_author_and_a_note_as_text(ben: Client) -> None:
    """No spreadsheet takes them for a formula."""
    job = ben.search(id=SHORT, top=1).json["job"]
    answer = ben.get(f"/jobs/{job}/table", author="=ben", note='case 7, "a"')
    head, row = answer.body.decode().splitlines()
    assert head.endswith("model,error,author,note")
    assert row.endswith(''',bundle-0,,'=ben,"case 7, ""a"""''')


def test_a_table_of_no_match_has_its_head(ben: Client) -> None:
    job = ben.search(id=SHORT, folder="elsewhere").json["job"]
    (head,) = ben.get(f"/jobs/{job}/table").body.decode().splitlines()
    assert head.endswith("model,error,author,note")


@pytest.mark.parametrize("shown", ["media", "thumbnails"])
def test_a_ticket_opens_pictures_and_media(nobody: Client, ben: Client, shown: str) -> None:
    """A page cannot send a token with them."""
    ticket = ben.get("/index").json["ticket"]
    assert nobody.get(f"/{shown}/{SHORT}", ticket=ticket).status == 200


def test_a_ticket_opens_nothing_else(nobody: Client, ben: Client) -> None:
    ticket = ben.get("/index").json["ticket"]
    assert nobody.get("/videos", ticket=ticket).status == 401


@pytest.mark.parametrize("ticket", ["x", ""])
def test_a_wrong_ticket_opens_nothing(nobody: Client, ticket: str) -> None:
    assert nobody.get(f"/media/{SHORT}", ticket=ticket).status == 401
