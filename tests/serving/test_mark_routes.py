"""Marks over HTTP, and what is answered of a video that was forgotten."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapvr.data.manifest import read_manifest_shard, shard_keys, write_manifest_shard
from hapvr.search.kept_answers import remove_answer
from hapvr.steps.project import Project
from tests.serving.served import COPY, SHORT, Client, references, serving
from tests.steps.search_projects import copied


@pytest.mark.parametrize(("mark", "there"), [("not_a_match", False), ("match", True)])
def test_marks_are_kept_respected_and_taken_back(client: Client, mark: str, there: bool) -> None:
    """A search and the groups leave out what is no match, until the mark is taken back."""
    pair = {"query": SHORT, "reference": COPY}
    answer = client.ask("PATCH", "/pairs", body=pair | {"mark": mark})
    listed = [row["verdict"] for row in client.get("/pairs").json["marks"]]
    matches = references(client.search(id=SHORT).json)
    groups = client.get("/duplicates", kind="copy").json["groups"]
    matrix = client.get("/pairs/matrix", **pair).json
    taken_back = client.ask("PATCH", "/pairs", body=pair | {"mark": None})
    assert answer.status == 200
    assert answer.json["mark"] == mark
    assert listed == [mark]
    assert (COPY in matches) is there
    assert bool(groups) is there
    assert matrix["mark"] == mark
    assert taken_back.json["mark"] is None
    assert client.get("/pairs").json["marks"] == []
    assert client.get("/pairs/matrix", **pair).json["mark"] == ""
    assert COPY in references(client.search(id=SHORT).json)
    assert client.get("/duplicates", kind="copy").json["groups"]


def test_what_somebody_else_has_said_meanwhile_is_not_overwritten(client: Client) -> None:
    """By a page that shows the pair as it was before; by one that shows it as it is."""
    pair = {"query": SHORT, "reference": COPY}
    client.ask("PATCH", "/pairs", body=pair | {"mark": "match"})
    late = client.ask("PATCH", "/pairs", body=pair | {"mark": "not_a_match", "seen": ""})
    kept = [row["verdict"] for row in client.get("/pairs").json["marks"]]
    knowing = client.ask("PATCH", "/pairs", body=pair | {"mark": "not_a_match", "seen": "match"})
    client.ask("PATCH", "/pairs", body=pair | {"mark": None})
    assert late.status == 409
    assert late.json["code"] == "marked_meanwhile"
    assert "somebody else has changed the mark meanwhile: the pair is a match" in late.json["error"]
    assert kept == ["match"]
    assert knowing.json["mark"] == "not_a_match"


@pytest.mark.parametrize("mark", ["match", None])
def test_what_two_people_say_alike_is_said_once(client: Client, mark: str | None) -> None:
    """Neither is told that the other was against it."""
    asked = {"query": SHORT, "reference": COPY, "mark": mark, "seen": "" if mark else "match"}
    if mark is None:
        client.ask("PATCH", "/pairs", body=asked | {"mark": "match", "seen": ""})
    client.ask("PATCH", "/pairs", body=asked)
    first = client.get("/pairs").json["marks"]
    second = client.ask("PATCH", "/pairs", body=asked)
    assert (second.status, second.json["mark"]) == (200, mark)
    assert client.get("/pairs").json["marks"] == first
    client.ask("PATCH", "/pairs", body=asked | {"mark": None, "seen": None})


def without_manifest_row(project: Project, video_id: str) -> None:
    """What `forget` begins with."""
    for key in shard_keys(project.root):
        rows = read_manifest_shard(project.root, key)
        write_manifest_shard(project.root, key, [row for row in rows if row.video_id != video_id])


@dataclass(frozen=True)
class Stale:
    """A service whose index was opened before a video of it was forgotten."""

    client: Client
    job: str
    """a search for that video"""


@pytest.fixture(scope="module")
def stale(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stale]:
    project = copied(collection, tmp_path_factory.mktemp("stale"))
    with serving(project) as client:
        job = client.search(id=COPY).json["job"]
        without_manifest_row(project, COPY)
        yield Stale(client, job)


@pytest.mark.parametrize(
    "pair",
    [
        {"query": SHORT, "reference": COPY},
        {"query": COPY, "reference": SHORT},
        {"job": "{job}", "reference": SHORT},
    ],
    ids=["reference", "query", "job"],
)
def test_a_video_that_was_forgotten_since_the_index_was_opened_is_not_marked(
    stale: Stale, pair: dict[str, str]
) -> None:
    """`forget` begins with the manifest, and looks at the marks later."""
    asked = {name: value.format(job=stale.job) for name, value in pair.items()}
    refused = stale.client.ask("PATCH", "/pairs", body=asked | {"mark": "match"})
    assert refused.status == 404
    assert refused.json["code"] == "unknown_id"
    assert "was forgotten" in refused.json["error"]
    assert stale.client.get("/pairs").json["marks"] == []


def test_a_search_for_a_forgotten_video_does_not_let_it_be_marked(
    collection: Path, tmp_path: Path
) -> None:
    """Also once the index is without it: the query of the search is still in memory."""
    project = copied(collection, tmp_path)
    with serving(project) as client:
        asked = {"job": client.search(id=COPY).json["job"], "reference": SHORT, "mark": "match"}
        client.service.collection.current().searcher.collection.shard_of.pop(COPY)
        refused = client.ask("PATCH", "/pairs", body=asked)
        assert (refused.status, refused.json["code"]) == (404, "unknown_id")
        assert client.get("/pairs").json["marks"] == []


@pytest.mark.parametrize("named_by", ["query", "match"])
def test_what_names_a_forgotten_video_is_not_answered_from_memory(
    collection: Path, tmp_path: Path, named_by: str
) -> None:
    """Once the index is without it: `forget` removes what is kept on the disk."""
    project = copied(collection, tmp_path)
    with serving(project) as client:
        job = client.search(id={"query": COPY, "match": SHORT}[named_by]).json["job"]
        addresses = {
            f"/jobs/{job}": {},
            f"/jobs/{job}/table": {},
            f"/jobs/{job}/explanation": {"reference": SHORT},
            f"/query-pictures/{job}": {},
            "/pairs/matrix": {"job": job, "reference": SHORT},
        }
        before = {client.get(path, **values).status for path, values in addresses.items()}
        remove_answer(project.root, job)
        without_manifest_row(project, COPY)
        client.service.collection.current().searcher.collection.shard_of.pop(COPY)
        after = {client.get(path, **values).json["code"] for path, values in addresses.items()}
        assert (before, after) == ({200}, {"unknown_job"})


def test_nothing_is_shown_or_said_while_the_data_root_is_away(
    collection: Path, tmp_path: Path
) -> None:
    """As with its drive: what is said would be lost."""
    project = copied(collection, tmp_path)
    place = Path(project.root.url)
    with serving(project) as client:
        asked = {"query": SHORT, "reference": COPY, "mark": "match"}
        assert client.ask("PATCH", "/pairs", body=asked | {"mark": None}).status == 200
        away = place.rename(tmp_path / "away")
        assert client.ask("PATCH", "/pairs", body=asked).status == 503
        assert not place.exists()
        assert {client.get(path).status for path in ("/watch", "/duplicates", "/ready")} == {503}
        assert client.get("/metrics").status == 200
        away.rename(place)
        assert client.ask("PATCH", "/pairs", body=asked).status == 200
