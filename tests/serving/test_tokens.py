"""Bearer tokens: who may read, who may mark, and what a token file must be like."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

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


def test_tokens_say_who_may_do_what(collection: Path, tmp_path: Path) -> None:
    """Nobody without a token; readers do not mark; a mark has the name of who made it. Probes and
    the page are for all."""
    with serving(
        copied(collection, tmp_path), token_file=written(tmp_path, READ, "# comment", MARK)
    ) as nobody:
        ben = replace(nobody, token="r")
        anna = replace(nobody, token="m")
        marked = {"query": SHORT, "reference": COPY, "mark": "match"}
        for client in (
            nobody,
            replace(nobody, token="x"),
            replace(nobody, token=sha256(b"r").hexdigest()),
        ):
            for path in (
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
            ):
                refused = client.get(path)
                assert refused.status == 401, path
                assert refused.json["code"] == "no_token", path
                assert refused.headers["www-authenticate"] == "Bearer"
            assert client.search(id=SHORT).status == 401
            assert client.ask("PATCH", "/pairs", body=marked).status == 401
            assert {client.get(path).status for path in ("/", "/main.js", "/health")} == {200}
        assert ben.search(id=SHORT, top=1).status == 200
        assert ben.get("/index").json["may_mark"] is False
        assert anna.get("/index").json["may_mark"] is True
        assert nobody.get("/ready").status == 200
        for refused in (
            ben.ask("PATCH", "/pairs", body=marked),
            ben.ask("POST", "/duplicates/job"),
            ben.ask("POST", "/watch", job="x"),
            ben.ask("POST", "/watch/job"),
            ben.ask("DELETE", "/watch/x"),
            ben.ask("POST", "/collection/job"),
        ):
            assert refused.status == 403
            assert refused.json["code"] == "wrong_role"
        assert anna.ask("PATCH", "/pairs", body=marked).status == 200
        assert [row["by"] for row in ben.get("/pairs").json["marks"]] == ["anna"]
        job = ben.search(id=SHORT, top=1).json
        (match,) = job["answer"]["matches"]
        assert match["mark"] == "match"
        assert match["marked_by"] == "anna"
        head, row = (
            ben.get(f"/jobs/{job['job']}/table", author="=ben", note='case 7, "a"')
            .body.decode()
            .splitlines()
        )
        assert head.endswith("model,error,author,note")
        assert row.endswith(''',bundle-0,,'=ben,"case 7, ""a"""''')
        job = ben.search(id=SHORT, folder="elsewhere").json["job"]
        assert ben.get(f"/jobs/{job}/table").body.decode().splitlines() == [head]
        ticket = ben.get("/index").json["ticket"]
        for shown in ("media", "thumbnails"):
            assert nobody.get(f"/{shown}/{SHORT}", ticket=ticket).status == 200
        assert (
            nobody.get("/videos", ticket=ticket).status
            == nobody.get(f"/media/{SHORT}", ticket="x").status
            == 401
        )
        assert nobody.get(f"/media/{SHORT}", ticket="").status == 401


def test_the_state_says_what_the_caller_may_do(collection: Path, tmp_path: Path) -> None:
    """So that a page offers readers nothing that would be refused."""
    with serving(copied(collection, tmp_path), token_file=written(tmp_path, READ, MARK)) as nobody:
        ben = replace(nobody, token="r")
        anna = replace(nobody, token="m")
        assert not ben.get("/index").json["may_mark"]
        assert anna.get("/index").json["may_mark"]


def test_without_tokens_everybody_may_mark(client: Client) -> None:
    assert client.get("/index").json["may_mark"]
