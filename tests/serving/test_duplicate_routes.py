"""Matrices and groups of duplicates over HTTP."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hapvr.steps.duplicate_groups import RANDOM_WEIGHTS
from tests.scorer.bundles import write_scenes
from tests.serving.served import COPY, PART, SHORT, Client
from tests.steps.search_projects import LONG


@pytest.mark.slow
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
    ("form", "beginning"), [("csv", b"group,action,"), ("sh", b"#!")], ids=["table", "script"]
)
def test_a_plan_for_copies_is_that_of_the_command(
    client: Client, form: str, beginning: bytes
) -> None:
    answer = client.ask("POST", "/duplicates/plan", form=form)
    assert answer.status == 200
    assert answer.body.startswith(beginning)
    assert client.ask("POST", "/duplicates/plan", form="exe").status == 400


def test_no_plan_is_given_where_no_paths_are_shown(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy: it names where each file is. The page knows before it shows a button."""
    assert client.get("/index").json["has_paths"] is True
    monkeypatch.setattr(client.service, "is_local", False)
    assert client.get("/index").json["has_paths"] is False
    answer = client.ask("POST", "/duplicates/plan", form="csv")
    assert (answer.status, answer.json["code"]) == (403, "no_paths")
    assert b"videos/" not in answer.body


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
