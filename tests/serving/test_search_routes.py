"""Searches over HTTP: by a video of the collection, a path and an upload; jobs, and why a video
was found."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hapvr.steps.searcher import Searcher
from hapvr.steps.watch_queries import watch_queries
from tests.scorer.bundles import scene, write_scenes
from tests.serving.served import COPY, GONE, PART, SHORT, Answer, Client, references, serving
from tests.steps.search_projects import LONG, copied


def test_a_video_of_the_collection_finds_its_copy(client: Client) -> None:
    """By id: the rows of `hapvr search`, the warning of a random model with them."""
    job_state = client.search(id=SHORT, top=2).json
    assert job_state["status"] == "done"
    assert references(job_state)[0] == COPY
    assert len(references(job_state)) == 2
    assert "random weights" in job_state["answer"]["warnings"][0]
    assert job_state["answer"]["prior"] == Searcher.open(client.service.project).prior
    best = job_state["answer"]["matches"][0]
    assert best["segments"][0]["query_start_s"] == 0
    assert best["probability"] > 0.9


def test_a_video_whose_file_is_away_is_said_to_be_offline(client: Client) -> None:
    """One that was deleted; not one that was replaced. It is found all the same."""
    matches = client.search(id=SHORT).json["answer"]["matches"]
    assert {match["reference"] for match in matches if match["offline"]} == {GONE}


@dataclass(frozen=True)
class Searched:
    """A service of its own that was sent a clip, and the job of that search."""

    client: Client
    clip: Path
    job: str


@pytest.fixture(scope="module")
def searched(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """The sender's name of the clip is one that could lead elsewhere."""
    folder = tmp_path_factory.mktemp("searched")
    clip = write_scenes(folder / "clip.mp4", list(LONG[25:31]))
    with serving(copied(collection, folder / "served")) as client:
        job = client.upload(clip, top=1, name="../../x y.MOV").json["job"]
        yield Searched(client, clip, job)


def test_a_search_says_why_a_video_is_left_out(searched: Searched) -> None:
    """In the words of the command line."""
    answer = searched.client.get(f"/jobs/{searched.job}/explanation", reference=SHORT).json
    assert answer["lines"][:2] == ["query    x y.MOV", f"video    {SHORT}: left out: 1 are better"]


def test_an_upload_becomes_a_watch_list_of_a_copy_of_it(searched: Searched) -> None:
    """Under a name that is safe."""
    sent = searched.clip.read_bytes()
    response = searched.client.ask("POST", "/watch", body=sent, job=searched.job)
    assert response.status == 201
    name = response.json["name"]
    assert name == "x-y"
    queries = watch_queries(searched.client.service.project)
    (query,) = (query for query in queries if query.watch_list.name == name)
    assert query.path.suffix == ".mov"
    assert query.path.read_bytes() == sent


def test_a_video_of_the_collection_becomes_a_watch_list(searched: Searched) -> None:
    client = searched.client
    job = client.search(id=SHORT).json["job"]
    name = client.ask("POST", "/watch", job=job).json["name"]
    assert name in [shown["name"] for shown in client.get("/watch").json["lists"]]


def test_nothing_stays_of_an_upload_that_became_a_watch_list(searched: Searched) -> None:
    sent = searched.clip.read_bytes()
    assert searched.client.ask("POST", "/watch", body=sent, job=searched.job).json["name"]
    assert searched.client.uploads == []


@pytest.fixture(scope="module")
def job_of_gone(client: Client) -> str:
    """A search by a video whose file is gone."""
    return str(client.search(id=GONE, top=1).json["job"])


@pytest.mark.parametrize(
    ("job", "values", "status"),
    [
        ("absent", {"reference": SHORT}, 404),
        ("{job}", {"reference": "in/absent.mp4"}, 404),
        ("{job}", {}, 400),
    ],
    ids=["no such search", "no such video", "of no video"],
)
def test_an_explanation_that_cannot_be_given_is_refused(
    client: Client, job_of_gone: str, job: str, values: dict[str, Any], status: int
) -> None:
    path = f"/jobs/{job.format(job=job_of_gone)}/explanation"
    assert client.get(path, **values).status == status


def test_a_watch_list_of_no_search_is_refused(client: Client) -> None:
    assert client.ask("POST", "/watch", job="absent").status == 404
    assert client.ask("POST", "/watch").status == 400


@pytest.mark.parametrize("body", [None, b"another file"])
def test_a_watch_list_of_a_file_that_is_gone_or_another_is_refused(
    client: Client, job_of_gone: str, body: bytes | None
) -> None:
    assert client.ask("POST", "/watch", job=job_of_gone, body=body).status == 410


@pytest.mark.slow
def test_an_upload_is_searched_and_deleted(client: Client, tmp_path: Path) -> None:
    """The answer has the sender's name and never the temporary one."""
    clip = write_scenes(tmp_path / "<b>my clip.mp4", [500, 501, *LONG[25:31]])
    job = client.upload(clip, top=1, **{"from": 2}).json
    match = job["answer"]["matches"][0]
    assert job["query"] == "<b>my clip.mp4"
    assert match["query"] == "<b>my clip.mp4"
    assert match["reference"] == "in/long.mp4"
    assert match["segments"][0]["query_start_s"] == 2
    assert match["segments"][0]["reference_start_s"] == 25
    assert client.uploads == []


def test_a_still_picture_is_known_by_its_suffix(client: Client, tmp_path: Path) -> None:
    picture = tmp_path / "still.png"
    Image.fromarray(scene(LONG[7])).save(picture)
    assert references(client.upload(picture).json)[0] == "in/long.mp4"
    assert client.uploads == []


@dataclass(frozen=True)
class LongSearch:
    """A search that is not waited for, and its end."""

    begun: Answer
    done: Answer


@pytest.fixture
def every_search_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is answered at once."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)


@pytest.fixture
def long_search(client: Client, every_search_is_long: None) -> LongSearch:
    begun = client.ask("POST", "/search", body={"id": "in/long.mp4"})
    return LongSearch(begun, client.ended(begun))


def test_a_long_search_is_a_job(client: Client, long_search: LongSearch) -> None:
    """202 with the address of the job, which tells the end as often as it is asked."""
    address = long_search.begun.headers["location"]
    assert long_search.begun.status == 202
    assert address == f"/jobs/{long_search.begun.json['job']}"
    assert references(long_search.done.json)[0] == PART
    assert client.get(address).json == long_search.done.json


def test_a_job_that_is_done_can_be_ended(client: Client, long_search: LongSearch) -> None:
    address = long_search.begun.headers["location"]
    assert client.ask("DELETE", address).json["status"] == "done"


def test_values_of_an_upload_are_refused_beside_json(client: Client) -> None:
    assert client.ask("POST", "/search", body={"id": "in/long.mp4"}, top=3).status == 400


@pytest.mark.usefixtures("every_search_is_long")
def test_a_job_that_fails_says_so(client: Client) -> None:
    failed = client.ended(client.ask("POST", "/search", body={"id": "in/absent.mp4"}))
    assert failed.json["status"] == "failed"
    assert failed.json["code"] == "unknown_id"


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({}, 400, "expected one of path, url and id"),
        ({"id": SHORT, "top": 0}, 400, "top"),
        ({"id": SHORT, "from": 5, "to": 3}, 400, "expected 0 <= from < to"),
        ({"id": SHORT, "from": 500}, 422, "has no frame from 500 s on"),
        ({"id": "in/absent.mp4"}, 404, "the collection has no video 'in/absent.mp4'"),
        ({"path": "/absent/folder/x.mp4"}, 404, "x.mp4 cannot be read: No such file"),
        ({"url": "file:///etc/passwd"}, 403, "expected a path or an http(s) URL"),
        ({"url": "http://127.0.0.1:9/x.mp4"}, 403, "HAPVR_ALLOWED_HOSTS"),
    ],
    ids=str,
)
def test_bad_requests_get_a_sentence(
    client: Client, asked: dict[str, Any], status: int, said: str
) -> None:
    """A status, a code, one line; no folder of this machine."""
    answer = client.search(**asked)
    assert answer.status == status
    assert set(answer.json) == {"error", "code", "plain"}
    assert said in answer.json["error"]
    assert "/folder/" not in answer.json["error"]


@dataclass(frozen=True)
class Restricted:
    """A service that may read one folder, which has a clip and a link out of it."""

    client: Client
    folder: Path


@pytest.fixture(scope="module")
def restricted(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restricted]:
    folder = tmp_path_factory.mktemp("allowed")
    write_scenes(folder / "clip.mp4", list(LONG[3:9]))
    (folder / "link.mp4").symlink_to(collection / "videos" / "short.mp4")
    project = copied(collection, tmp_path_factory.mktemp("restricted"))
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HAPVR_ALLOWED_ROOTS", str(folder))
            client = stack.enter_context(serving(project))
        yield Restricted(client, folder)


def test_a_file_of_an_allowed_folder_is_searched(restricted: Restricted) -> None:
    job = restricted.client.search(path=str(restricted.folder / "clip.mp4")).json
    assert references(job)[0] == "in/long.mp4"


@pytest.mark.parametrize(
    "path",
    ["{collection}/videos/short.mp4", "{allowed}/link.mp4", "/etc/passwd", "/absent/x.mp4"],
    ids=["of the collection", "link", "of the machine", "absent"],
)
def test_a_file_of_another_folder_is_refused(
    restricted: Restricted, collection: Path, path: str
) -> None:
    """Whether it exists is not told."""
    place = path.format(collection=collection, allowed=restricted.folder)
    refused = restricted.client.search(path=place)
    assert refused.status == 403
    assert "HAPVR_ALLOWED_ROOTS" in refused.json["error"]
