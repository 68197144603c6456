"""Marks, matrices and duplicates over HTTP."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hapvr.serving.known_pairs import after
from tests.scorer.bundles import write_scenes
from tests.serving.served import Client
from tests.stages.search_projects import LONG

SHORT, COPY, PART = "in/short.mp4", "in/trips/copy of short.mp4", "in/trips/part.mp4"


def found_by(client: Client, video_id: str) -> list[str]:
    return [match["reference"] for match in client.search(id=video_id).json["answer"]["matches"]]


def test_marks_are_kept_respected_and_taken_back(client: Client) -> None:
    """A search, the groups and the known matches leave out what is no match, until the mark is taken back."""
    for mark, there in (("not_a_match", False), ("match", True), (None, True)):
        answer = client.ask("PATCH", "/pairs", body={"query": SHORT, "reference": COPY, "mark": mark})
        assert (answer.status, answer.json["mark"]) == (200, mark)
        assert (COPY in found_by(client, SHORT)) is there
        groups = client.get("/duplicates", kind="copy").json["groups"]
        assert bool(groups) is there
        assert [row["mark"] for row in client.get("/pairs").json["marks"]] == [] if mark is None else True
        known = client.get(f"/videos/{SHORT}/matches").json["matches"]
        assert (COPY in [row["reference"] for row in known]) is there
        every = client.get(f"/videos/{SHORT}/matches", rejected=True).json["matches"]
        assert {row["reference"]: row["mark"] for row in every}[COPY] == (mark or "")


def test_the_query_of_an_upload_can_be_marked(client: Client, tmp_path: Path) -> None:
    """By the search that it was sent for; the mark holds for the file, whatever its name."""
    clip = write_scenes(tmp_path / "clip.mp4", list(LONG[10:18]))
    job = client.upload(clip).json["job"]
    body = {"job": job, "reference": "in/long.mp4", "mark": "not_a_match"}
    assert client.ask("PATCH", "/pairs", body=body).status == 200
    assert client.get("/pairs").json["marks"][0]["names"] in (["clip.mp4", "in/long.mp4"], ["in/long.mp4", "clip.mp4"])
    again = client.upload(clip.rename(tmp_path / "other.mp4")).json
    assert "in/long.mp4" not in [match["reference"] for match in again["answer"]["matches"]]
    assert client.ask("PATCH", "/pairs", body=body | {"mark": None}).json["before"] == "not_a_match"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"query": SHORT, "reference": COPY}, 400),
        ({"query": SHORT, "reference": COPY, "mark": "maybe"}, 400),
        ({"reference": COPY, "mark": "match"}, 400),
        ({"query": SHORT, "job": "x", "reference": COPY, "mark": "match"}, 400),
        ({"job": "x", "reference": COPY, "mark": "match"}, 404),
        ({"query": SHORT, "reference": "in/absent.mp4", "mark": "match"}, 404),
        ({"query": "/etc/passwd", "reference": COPY, "mark": "match"}, 404),
        ({"query": SHORT, "reference": SHORT, "mark": "match"}, 400),
    ],
    ids=str,
)
def test_bad_marks_change_nothing(client: Client, body: dict[str, Any], status: int) -> None:
    answer = client.ask("PATCH", "/pairs", body=body)
    assert (answer.status, set(answer.json)) == (status, {"error", "code"})
    assert client.get("/pairs").json["marks"] == []
    assert client.get("/pairs/mark").status == 404


def test_the_matrix_shows_where_two_videos_are_alike(client: Client, tmp_path: Path) -> None:
    """As numbers and as a picture, for an id and for an upload: bright where the same pictures are."""
    found = client.get("/pairs/matrix", query=PART, reference="in/long.mp4").json
    values = np.asarray(found["values"])
    assert values.shape == (16, 40)
    assert len(found["query_times_s"]) == 16
    assert (np.diagonal(values[2:14, 10:22]) > 0.95).all()
    assert (np.delete(values, range(2, 14), axis=0) < found["threshold"]).all()
    picture = client.get("/pairs/matrix.png", query=PART, reference="in/long.mp4")
    with Image.open(io.BytesIO(picture.body)) as image:
        assert image.size == (40, 16)
        assert image.getpixel((10, 2))[0] > 220  # type: ignore[index]  # yellow
    job = client.upload(write_scenes(tmp_path / "clip.mp4", list(LONG[10:18]))).json["job"]
    assert np.shape(client.get("/pairs/matrix", job=job, reference="in/long.mp4").json["values"]) == (8, 40)
    for values in ({"query": "in/absent.mp4"}, {"job": "absent"}):
        assert client.get("/pairs/matrix", reference=PART, **values).status == 404
    assert client.get("/pairs/matrix", reference=PART).status == 400


def test_groups_and_pairs_are_filtered(client: Client) -> None:
    """Kind, folder, source, probability; the fields that differ are named; the copy to keep has its reason."""
    found = client.get("/duplicates").json
    assert found["shards_searched"] == found["shards"] > 0
    group, overlap = found["groups"]
    assert (group["kind"], {row["id"] for row in group["members"]}) == ("copy", {SHORT, COPY})
    assert [row["keep"] for row in group["members"]].count(True) == 1
    assert group["differing"] == ["num_bytes"]
    assert overlap["kind"] == "overlap"
    assert "duration_s" in overlap["differing"]
    for values, total in (
        ({"kind": "overlap"}, 1),
        ({"kind": "contained"}, 0),
        ({"folder": "in/trips"}, 2),
        ({"folder": "elsewhere"}, 0),
        ({"source": "in"}, 2),
        ({"source": "i"}, 0),
        ({"min_probability": 0.9999}, 0),
    ):
        assert client.get("/duplicates", **values).json["total"] == total, values
    first = client.get("/duplicates", limit=1).json
    second = client.get("/duplicates", limit=1, cursor=first["next"]).json
    assert (first["groups"] + second["groups"], second["next"]) == (found["groups"], "")
    for values in ({"kind": "x"}, {"min_probability": 2}, {"min_probability": "nan"}, {"cursor": "x"}, {"limit": 0}):
        assert client.get("/duplicates", **values).status == 400, values


def test_a_cursor_holds_while_rows_come_and_go() -> None:
    """The next piece begins behind the last row that was shown, also if that row is gone by then."""
    rows = [([0, -2, -0.9, name], {"group": name}) for name in "abcdef"]
    shown, cursor = after(rows, "", 2)
    assert [row["group"] for row in shown] == ["a", "b"]
    shown, _ = after([row for row in rows if row[1]["group"] not in "ab"], cursor, 2)
    assert [row["group"] for row in shown] == ["c", "d"]
