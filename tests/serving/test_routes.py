"""Searches, media, marks, matrices and duplicates over HTTP."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hapvr.data.manifest import read_manifest_shard, shard_keys, write_manifest_shard
from hapvr.search import marks
from hapvr.search.kept_answers import remove_answer
from hapvr.steps.duplicate_groups import RANDOM_WEIGHTS
from hapvr.steps.project import Project
from hapvr.steps.watch_queries import watch_queries
from tests.scorer.bundles import scene, write_scenes
from tests.serving.served import GONE, REPLACED, Client, serving
from tests.steps.search_projects import LONG, copied

SHORT = "in/short.mp4"
COPY = "in/trips/copy of short.mp4"
PART = "in/trips/part.mp4"


def names(answer: Any) -> list[str]:
    return [match["reference"] for match in answer["answer"]["matches"]]


def test_health_index_and_videos(client: Client) -> None:
    """What answers and its warnings, without paths; videos are listed a piece at a time."""
    assert client.get("/health").json["status"] == "ok"
    payload = client.get("/index").json
    assert payload["videos"] == 11
    assert payload["problem"] == ""
    assert "random weights" in payload["warnings"][0]
    assert "/" not in payload["model"]
    payload = client.get("/videos", contains="SHORT", limit=1, offset=1).json
    assert payload["total"] == 2
    assert [row["id"] for row in payload["videos"]] == [COPY]
    assert client.get(f"/videos/{COPY}").json == payload["videos"][0]
    assert client.get("/videos", limit="x7").json["error"].endswith("(got 'x7')")


def test_media_is_the_file_by_ranges(client: Client, collection: Path) -> None:
    """Whole, a range, and one beyond its end."""
    data = (collection / "videos" / "trips" / "copy of short.mp4").read_bytes()
    whole = client.get(f"/media/{COPY}")
    assert whole.status == 200
    assert whole.body == data
    assert whole.headers["content-type"] == "video/mp4"
    part = client.get(f"/media/{COPY}", headers={"range": "bytes=10-19"})
    assert part.status == 206
    assert part.body == data[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(data)}"
    assert client.get(f"/media/{COPY}", headers={"range": f"bytes={len(data)}-"}).status == 416


@pytest.mark.parametrize(
    "name",
    [
        "in/absent.mp4",
        "../config.yaml",
        "in/../../config.yaml",
        "{collection}/config.yaml",
        "",
    ],
)
def test_only_ids_of_the_collection_have_media(client: Client, collection: Path, name: str) -> None:
    assert client.get(f"/media/{name.format(collection=collection)}").status == 404


@pytest.mark.parametrize(("video_id", "code"), [(GONE, "gone"), (REPLACED, "replaced")])
def test_a_file_that_is_gone_or_another_by_now_is_not_sent(
    client: Client, video_id: str, code: str
) -> None:
    """What is stored of it still answers."""
    answer = client.get(f"/media/{video_id}")
    assert answer.status == 410
    assert answer.json["code"] == code
    assert "`hapvr index update`" in answer.json["error"]
    assert client.get(f"/thumbnails/{video_id}").status == 200
    assert client.search(id=video_id).status == 200


def test_thumbnails_are_small_pictures(client: Client) -> None:
    answer = client.get(f"/thumbnails/{COPY}", second=3.2, width=64)
    with Image.open(io.BytesIO(answer.body)) as picture:
        assert picture.format == "JPEG"
        assert picture.width == 64


@pytest.mark.parametrize(("asked", "is_black"), [({"second": 0}, True), ({}, False)])
def test_the_thumbnail_of_no_second_is_the_first_that_shows_something(
    client: Client, asked: dict[str, Any], is_black: bool
) -> None:
    answer = client.get(f"/thumbnails/{GONE}", **asked)
    with Image.open(io.BytesIO(answer.body)) as picture:
        assert (np.asarray(picture).mean() < 20) == is_black


def test_what_foreign_pages_send_is_refused(client: Client) -> None:
    assert client.get("/health", headers={"host": "evil.example"}).status == 403
    assert client.ask("POST", "/search", headers={"origin": "http://evil.example"}).status == 403


@pytest.mark.parametrize("path", ["/", "/main.js", "/health", f"/media/{SHORT}", "/absent"])
def test_every_answer_forbids_foreign_content(client: Client, path: str) -> None:
    """The page, JSON, media and refusals: a strict policy, no guesses at types."""
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_there_and_other_addresses_are_not(client: Client) -> None:
    assert client.get("/absent").json["code"] == "http"
    assert b"HAP-VR" in client.get("/").body


def test_without_an_index_the_service_says_what_to_run(collection: Path, tmp_path: Path) -> None:
    """No index: it starts all the same, and is not ready. Damaged: named. Once it is there, it is
    used without a restart."""
    project = copied(collection, tmp_path)
    place = project.root.local_path("search/current.json")
    whole = place.read_bytes()
    marks.mark(project.root, SHORT, COPY, "match")
    place.unlink()
    with serving(project) as client:
        assert client.get("/health").status == 200
        for missing in (client.search(id=SHORT), client.get("/ready")):
            assert missing.status == 503
            assert missing.json["code"] == "no_index"
            assert "`hapvr index build` makes one" in missing.json["error"]
            assert str(tmp_path) not in missing.json["error"]

        assert "hapvr index build" in client.get("/index").json["problem"]
        assert [row["in_collection"] for row in client.get("/pairs").json["marks"]] == [False]
        for damaged in (b"", b'{"place": 1}', whole[:20]):
            place.write_bytes(damaged)
            answer = client.get("/videos")
            assert answer.status == 503
            assert answer.json["code"] == "no_index"

        place.write_bytes(whole)
        assert client.search(id=SHORT).status == client.get("/ready").status == 200
        place.write_bytes(
            b"{}"
        )  # the open index goes on, and GET /index says that something is wrong
        assert client.search(id=SHORT).status == 200
        assert "damaged" in client.get("/index").json["problem"]
        client.service.collection.current().searcher.damage.append("search: a file is damaged")
        assert (client.get("/ready").status, client.get("/health").status) == (503, 200)


def test_a_video_of_the_collection_finds_its_copy(client: Client) -> None:
    """By id: the rows of `hapvr search`, the warning of a random model with them."""
    job_state = client.search(id=SHORT, top=2).json
    assert job_state["status"] == "done"
    assert names(job_state)[0] == COPY
    assert len(names(job_state)) == 2
    assert "random weights" in job_state["answer"]["warnings"][0]
    assert job_state["answer"]["prior"] == pytest.approx(0.5 / job_state["answer"]["videos"])
    best = job_state["answer"]["matches"][0]
    assert best["segments"][0]["query_start_s"] == 0
    assert best["probability"] > 0.9


def test_a_video_whose_file_is_away_is_said_to_be_offline(client: Client) -> None:
    """One that was deleted; not one that was replaced. It is found all the same."""
    matches = client.search(id=SHORT).json["answer"]["matches"]
    assert {match["reference"] for match in matches if match["offline"]} == {GONE}


def test_a_search_says_why_and_becomes_a_watch_list(
    client: Client, collection: Path, tmp_path: Path
) -> None:
    """In the words of the command line; a copy of what was sent, or of a video of the collection,
    under a name that is safe."""
    clip = write_scenes(tmp_path / "clip.mp4", list(LONG[25:31]))
    with serving(copied(collection, tmp_path / "served")) as served:
        job = served.upload(clip, top=1, name="../../x y.MOV").json["job"]
        lines = served.get(f"/jobs/{job}/explanation", reference=SHORT).json["lines"]
        assert lines[:2] == ["query    x y.MOV", f"video    {SHORT}: left out: 1 are better"]
        response = served.ask("POST", "/watch", body=clip.read_bytes(), job=job)
        assert response.status == 201
        assert response.json["name"][:4] == "x-y-"
        (query,) = (
            one
            for one in watch_queries(served.service.project)
            if one.watch_list.name == response.json["name"]
        )
        assert query.path.suffix == ".mov"
        assert query.path.read_bytes() == clip.read_bytes()
        again = served.search(id=SHORT).json["job"]
        name = served.ask("POST", "/watch", job=again).json["name"]
        assert name in [shown["name"] for shown in served.get("/watch").json["lists"]]
        assert served.uploads == []


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


def test_an_upload_is_searched_and_deleted(client: Client, tmp_path: Path) -> None:
    """The answer has the sender's name and never the temporary one; a still picture is known by its
    suffix."""
    clip = write_scenes(tmp_path / "<b>my clip.mp4", [500, 501, *LONG[25:31]])
    job_state = client.upload(clip, top=1, **{"from": 2}).json
    match = job_state["answer"]["matches"][0]
    assert job_state["query"] == match["query"] == "<b>my clip.mp4"
    assert match["reference"] == "in/long.mp4"
    assert (match["segments"][0]["query_start_s"], match["segments"][0]["reference_start_s"]) == (
        2,
        25,
    )
    picture = tmp_path / "still.png"
    Image.fromarray(scene(LONG[7])).save(picture)
    assert names(client.upload(picture).json)[0] == "in/long.mp4"
    assert client.uploads == []


def test_a_long_search_is_a_job(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """202 with the address of the job, which tells the end; a job can be asked for again, and
    ended."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
    begun = client.ask("POST", "/search", body={"id": "in/long.mp4"})
    assert begun.status == 202
    assert begun.headers["location"] == f"/jobs/{begun.json['job']}"
    done = client.ended(begun)
    assert names(done.json)[0] == PART
    assert client.get(begun.headers["location"]).json == done.json
    assert client.ask("DELETE", begun.headers["location"]).json["status"] == "done"
    assert client.ask("POST", "/search", body={"id": "in/long.mp4"}, top=3).status == 400
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


def test_only_the_allowed_folders_are_read(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAPVR_ALLOWED_ROOTS holds for paths; whether a forbidden file exists is not told."""
    allowed = tmp_path / "allowed"
    clip = write_scenes(allowed / "clip.mp4", list(LONG[3:9]))
    (allowed / "link.mp4").symlink_to(collection / "videos" / "short.mp4")
    monkeypatch.setenv("HAPVR_ALLOWED_ROOTS", str(allowed))
    with serving(copied(collection, tmp_path / "served")) as client:
        assert names(client.search(path=str(clip)).json)[0] == "in/long.mp4"
        for path in (
            collection / "videos" / "short.mp4",
            allowed / "link.mp4",
            "/etc/passwd",
            "/absent/x.mp4",
        ):
            refused = client.search(path=str(path))
            assert refused.status == 403
            assert "HAPVR_ALLOWED_ROOTS" in refused.json["error"]


@pytest.mark.parametrize(("mark", "there"), [("not_a_match", False), ("match", True)])
def test_marks_are_kept_respected_and_taken_back(client: Client, mark: str, there: bool) -> None:
    """A search and the groups leave out what is no match, until the mark is taken back."""
    pair = {"query": SHORT, "reference": COPY}
    answer = client.ask("PATCH", "/pairs", body=pair | {"mark": mark})
    listed = [row["verdict"] for row in client.get("/pairs").json["marks"]]
    matches = names(client.search(id=SHORT).json)
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
    assert COPY in names(client.search(id=SHORT).json)
    assert client.get("/duplicates", kind="copy").json["groups"]


def without_manifest_row(project: Project, video_id: str) -> None:
    """What `forget` begins with."""
    for key in shard_keys(project.root):
        rows = read_manifest_shard(project.root, key)
        write_manifest_shard(project.root, key, [row for row in rows if row.video_id != video_id])


@pytest.mark.parametrize("named_by", ["reference", "query", "job"])
def test_a_video_that_was_forgotten_since_the_index_was_opened_is_not_marked(
    collection: Path, tmp_path: Path, named_by: str
) -> None:
    """`forget` begins with the manifest, and looks at the marks later."""
    project = copied(collection, tmp_path)
    with serving(project) as client:
        pairs = {
            "reference": {"query": SHORT, "reference": COPY},
            "query": {"query": COPY, "reference": SHORT},
            "job": {"job": client.search(id=COPY).json["job"], "reference": SHORT},
        }
        without_manifest_row(project, COPY)
        refused = client.ask("PATCH", "/pairs", body=pairs[named_by] | {"mark": "match"})
        assert (refused.status, refused.json["code"]) == (404, "unknown_id")
        assert "was forgotten" in refused.json["error"]
        assert client.get("/pairs").json["marks"] == []


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


def test_the_matrix_shows_where_two_videos_are_alike(client: Client, tmp_path: Path) -> None:
    """As numbers and as a picture, for an id and for an upload: bright where the same pictures
    are."""
    similarity_matrix = client.get("/pairs/matrix", query=PART, reference="in/long.mp4").json
    values = np.asarray(similarity_matrix["values"])
    assert values.shape == (16, 40)
    assert len(similarity_matrix["query_times_s"]) == 16
    assert (np.diagonal(values[2:14, 10:22]) > 0.95).all()
    assert (np.delete(values, range(2, 14), axis=0) < similarity_matrix["threshold"]).all()
    job = client.upload(write_scenes(tmp_path / "clip.mp4", list(LONG[10:18]))).json["job"]
    assert np.shape(
        client.get("/pairs/matrix", job=job, reference="in/long.mp4").json["values"]
    ) == (8, 40)


@pytest.mark.parametrize(
    ("query", "status"),
    [({"query": "in/absent.mp4"}, 404), ({"job": "absent"}, 404), ({}, 400)],
    ids=["no such video", "no such search", "of nothing"],
)
def test_a_matrix_of_what_is_not_there_is_refused(
    client: Client, query: dict[str, Any], status: int
) -> None:
    assert client.get("/pairs/matrix", reference=PART, **query).status == status


def test_groups_say_their_kind_and_what_to_keep(client: Client) -> None:
    """The copy to keep has its reason; a pair that is no copy is a group of its own kind."""
    duplicate_groups = client.get("/duplicates").json
    assert duplicate_groups["shards_searched"] == duplicate_groups["shards"] > 0
    group, overlap = duplicate_groups["groups"]
    assert group["kind"] == "copy"
    assert {row["id"] for row in group["members"]} == {SHORT, COPY}
    assert not any(row["keep"] for row in group["members"])  # its weights are random
    assert {row["reason"] for row in group["members"]} == {RANDOM_WEIGHTS}
    assert [row["verdict"] for row in group["members"] if not row["medoid"]] == ["match"]
    assert overlap["kind"] == "overlap"


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ({"kind": "overlap"}, 1),
        ({"kind": "contained"}, 0),
        ({"folder": "in/trips"}, 2),
        ({"folder": "elsewhere"}, 0),
        ({"min_probability": 1}, 0),
    ],
    ids=str,
)
def test_groups_and_pairs_are_filtered(client: Client, values: dict[str, Any], total: int) -> None:
    assert client.get("/duplicates", **values).json["total"] == total


def test_groups_are_listed_a_piece_at_a_time(client: Client) -> None:
    first = client.get("/duplicates", limit=1).json
    second = client.get("/duplicates", limit=1, offset=1).json
    assert first["groups"] + second["groups"] == client.get("/duplicates").json["groups"]


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "x"},
        {"min_probability": 2},
        {"min_probability": "nan"},
        {"offset": -1},
        {"limit": 0},
    ],
    ids=str,
)
def test_a_filter_that_means_nothing_is_refused(client: Client, values: dict[str, Any]) -> None:
    assert client.get("/duplicates", **values).status == 400
