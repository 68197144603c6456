"""What the page shows of answers: present marks, present places, pictures of the query."""

import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from tests.scorer.bundles import scene, write_scenes
from tests.serving.served import Client, serving
from tests.serving.test_tokens import MARK, READ, written
from tests.steps.search_projects import LONG, copied

SHORT = "in/short.mp4"
COPY = "in/trips/copy of short.mp4"


def marked(client: Client, mark: str | None) -> None:
    body = {"query": SHORT, "reference": COPY, "mark": mark}
    assert client.ask("PATCH", "/pairs", body=body).status == 200


@pytest.mark.parametrize(("mark", "verdict"), [("not_a_match", "no match"), ("match", "match")])
def test_a_mark_counts_at_once_in_an_answer_that_was_given_before(
    client: Client, mark: str, verdict: str
) -> None:
    job = client.search(id=SHORT, top=1).json["job"]
    before = client.get(f"/jobs/{job}").json["answer"]
    marked(client, mark)
    (match,) = client.get(f"/jobs/{job}").json["answer"]["matches"]
    marked(client, None)
    assert match["mark"] == mark
    assert match["verdict"] == verdict
    assert match["marked_by"] == "local user"
    assert client.get(f"/jobs/{job}").json["answer"] == before


def test_the_same_mark_twice_is_one_mark(client: Client) -> None:
    marked(client, "match")
    marked(client, "match")
    assert len(client.get("/pairs").json["marks"]) == 1
    marked(client, None)
    marked(client, None)
    assert client.get("/pairs").json["marks"] == []


def test_an_answer_says_where_its_videos_lie_now(client: Client, collection: Path) -> None:
    job_state = client.search(id=SHORT, top=1).json
    place = job_state["places"][COPY]
    assert place["path"].endswith("/videos/trips/copy of short.mp4")
    assert place["duration_s"] > 1


def test_who_may_only_read_sees_no_folders(collection: Path, tmp_path: Path) -> None:
    tokens = written(tmp_path, READ, MARK)
    with serving(copied(collection, tmp_path / "served"), token_file=tokens) as service:
        paths = {}
        for token in ("r", "m"):
            client = Client(service.port, service.service, token=token)
            paths[token] = client.get(f"/videos/{COPY}").json["path"]

    assert paths["r"] == ""
    assert paths["m"].endswith("copy of short.mp4")


def is_small_jpeg(body: bytes) -> bool:
    with Image.open(io.BytesIO(body)) as picture:
        return picture.format == "JPEG" and picture.width == 64


def test_the_query_of_a_search_has_pictures(client: Client) -> None:
    job = client.search(id=SHORT).json["job"]
    assert is_small_jpeg(client.get(f"/query-pictures/{job}", second=2.4, width=64).body)


def test_a_file_that_was_sent_and_is_gone_has_pictures(client: Client, tmp_path: Path) -> None:
    clip = write_scenes(tmp_path / "clip.mp4", list(LONG[3:9]))
    job = client.upload(clip, top=1).json["job"]
    assert is_small_jpeg(client.get(f"/query-pictures/{job}", second=2.4, width=64).body)


def test_no_search_has_no_pictures(client: Client) -> None:
    assert client.get("/query-pictures/absent").status == 404


def test_a_picture_is_known_as_one(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "still.png"
    Image.fromarray(scene(LONG[7])).save(file)
    assert client.upload(file, top=1).json["still"]
    assert not client.search(id=SHORT, top=1).json["still"]


def test_a_table_has_as_many_decimals_as_are_worth_something(client: Client) -> None:
    job = client.search(id=SHORT, top=1).json["job"]
    text = client.get(f"/jobs/{job}/table", author="Anna", note="case 7").body.decode()
    row = next(csv.DictReader(io.StringIO(text)))
    assert len(row["similarity"].partition(".")[2]) <= 4
    assert len(row["query_end"].partition(".")[2]) <= 2
    assert row["author"] == "Anna"


def test_certain_and_unsure_duplicates_are_apart(client: Client) -> None:
    every = client.get("/duplicates", min_probability=0.5).json["total"]
    parts = [
        client.get("/duplicates", min_probability=0.5, surety=surety).json
        for surety in ("certain", "unsure")
    ]
    assert sum(part["total"] for part in parts) == every
    verdicts = {
        member["verdict"]
        for group in parts[0]["groups"]
        for member in group["members"]
        if not member["medoid"]
    }
    assert verdicts == {"match"}
    assert client.get("/duplicates", surety="maybe").status == 400
