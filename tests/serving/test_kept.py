"""Answers that stay at their address when the service has ended."""

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hapvr.care.stores import STORES
from hapvr.errors import DamagedError
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures
from hapvr.search import kept_frames
from hapvr.search.kept_answers import forget_answers, keep_answer, kept_jobs, read_answer
from hapvr.serving.kept import KeptAnswers
from tests.scorer.bundles import write_scenes
from tests.serving.served import Client, serving
from tests.steps.search_projects import LONG, copied

BEST = "in/long.mp4"


@contextmanager
def served(collection: Path, folder: Path, **settings: Any) -> Iterator[Client]:
    with serving(copied(collection, folder / "served", **settings)) as client:
        yield client


def answered(client: Client, folder: Path) -> str:
    """The job of a clip of long.mp4."""
    clip = write_scenes(folder / "my clip.mp4", list(LONG[25:31]))
    return str(client.upload(clip, top=2).json["job"])


@pytest.mark.slow
def test_an_answer_outlives_the_service(collection: Path, tmp_path: Path) -> None:
    """With its pictures, present marks, the similarities of frames, and as a table; all numbers
    want another search."""
    with served(collection, tmp_path) as client:
        job = answered(client, tmp_path)
        before = client.get(f"/jobs/{job}").json
        project = client.service.project

    with serving(project) as client:
        assert client.get(f"/jobs/{job}").json == before
        picture = client.get(f"/query-pictures/{job}", second=3, width=64)
        with Image.open(io.BytesIO(picture.body)) as image:
            assert image.width == 64
        assert client.get(f"/jobs/{job}/table").body.startswith(b"query_id,")
        marked = {"job": job, "reference": BEST, "mark": "not_a_match"}
        assert client.ask("PATCH", "/pairs", body=marked).status == 200
        (first, *_) = client.get(f"/jobs/{job}").json["answer"]["matches"]
        assert first["reference"] == BEST
        assert first["verdict"] == "no match"
        answer = client.get(f"/jobs/{job}/explanation", job=job, reference=BEST)
        assert answer.status == 410
        assert answer.json["code"] == "gone"
        assert answer.json["plain"] == ""  # the sentence says what to do


@pytest.mark.slow
def test_a_kept_answer_has_the_similarities_of_frames(collection: Path, tmp_path: Path) -> None:
    """But for the rounding of what is kept the same as before; not once another network answers."""
    with served(collection, tmp_path) as client:
        job = answered(client, tmp_path)
        before = client.get("/pairs/matrix", job=job, reference=BEST).json
        project = client.service.project

    with serving(project) as client:
        kept = client.get("/pairs/matrix", job=job, reference=BEST).json
        assert np.allclose(kept["values"], before["values"], atol=0.01)
        assert kept["query_times_s"] == before["query_times_s"]
        assert _times(kept["segments"]) == _times(before["segments"])
        answer = read_answer(project.root, job)
        assert answer is not None
        assert answer.frames is not None
        foreign = replace(answer.frames, network="0" * 16)
        keep_answer(project.root, replace(answer, frames=foreign))
        refusal = client.get("/pairs/matrix", job=job, reference=BEST)
        assert refusal.status == 410
        assert refusal.json["code"] == "gone"
        assert "another model answers by now" in refusal.json["error"]


def _times(segments: list[dict[str, Any]]) -> list[list[float]]:
    return [[value for name, value in part.items() if name.endswith("_s")] for part in segments]


def test_few_frames_of_a_long_query_are_kept(tmp_path: Path) -> None:
    """As many as fit, evenly apart, with every crop; what is read is what was kept."""
    regions = np.arange(40 * 3 * 8, dtype=np.float32).reshape(40, 3, 8)
    clock = FrameTimes(tuple(map(float, range(40))), 40.0)
    hashes = np.zeros(40, np.uint64)
    crop = SampledFeatures(regions + 1, clock, hashes)
    query = SampledFeatures(regions, clock, hashes, crops=(crop,))
    few = kept_frames.frames_to_keep(query, "n", max_bytes=10 * 2 * 2 * 3 * 8)
    assert few.times_s == (0.0, 4.0, 9.0, 13.0, 17.0, 22.0, 26.0, 30.0, 35.0, 39.0)
    again = kept_frames.read_frames(json.loads(json.dumps(few.record())))
    features = again.features()
    assert np.array_equal(features.regions, few.views[0])
    assert np.array_equal(features.crops[0].regions, few.views[1])
    assert features.clock == FrameTimes(few.times_s, 40.0)


@pytest.mark.slow
def test_nothing_is_kept_where_nobody_wants_it(collection: Path, tmp_path: Path) -> None:
    with served(collection, tmp_path, **{"retention.answer_days": 0}) as client:
        answered(client, tmp_path)
        assert kept_jobs(client.service.project.root) == []


@pytest.mark.slow
def test_old_answers_go(collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapvr.serving.kept.CLEAN_EVERY_S", 0.0)
    with served(collection, tmp_path, **{"retention.answer_days": 2}) as client:
        root = client.service.project.root
        old = answered(client, tmp_path)
        three_days_ago = time.time() - 3 * 86_400
        os.utime(root.local_path(f"answers/{old}.json"), (three_days_ago, three_days_ago))
        new = answered(client, tmp_path)
        assert kept_jobs(root) == [new]


@pytest.mark.slow
def test_old_answers_are_not_given(collection: Path, tmp_path: Path) -> None:
    """Also where nobody has searched since, and where answers are not kept any more."""
    with served(collection, tmp_path, **{"retention.answer_days": 2}) as client:
        project = client.service.project
        job = answered(client, tmp_path)
        kept = KeptAnswers(project)
        assert kept.read(job) is not None
        three_days_ago = time.time() - 3 * 86_400
        os.utime(project.root.local_path(f"answers/{job}.json"), (three_days_ago, three_days_ago))
        assert kept.read(job) is None

    assert kept_jobs(project.root) == [job]
    KeptAnswers(project)
    assert kept_jobs(project.root) == []


@pytest.mark.slow
def test_no_answer_of_a_replaced_index_is_kept(collection: Path, tmp_path: Path) -> None:
    """A video that was forgotten while the search ran would be named for weeks."""
    with served(collection, tmp_path) as client:
        service = client.service
        job = service.jobs.find(answered(client, tmp_path))
        assert job is not None
        index = service.collection.current()
        assert service.collection.is_current(index)
        service.project.root.write_json("search/current.json", {})
        is_current = partial(service.collection.is_current, index)
        network = index.searcher.current.digest
        service.kept.keep(job, job.task.result(), network=network, is_current=is_current)
        assert kept_jobs(service.project.root) == []


@pytest.mark.slow
@pytest.mark.parametrize("before", [b'"similarity": 0.', b'"name": "my', b'"rank": 1', b"long.mp4"])
def test_an_answer_with_a_flipped_bit_is_no_answer(
    collection: Path, tmp_path: Path, before: bytes
) -> None:
    with served(collection, tmp_path) as client:
        job = answered(client, tmp_path)
        root = client.service.project.root
        path = root.local_path(f"answers/{job}.json")
        content = path.read_bytes()
        assert before in content
        path.write_bytes(content.replace(before, before[:-1] + bytes([before[-1] ^ 1])))
        with pytest.raises(DamagedError, match=job):
            read_answer(root, job)


@pytest.mark.slow
def test_an_answer_that_names_a_forgotten_video_goes(collection: Path, tmp_path: Path) -> None:
    with served(collection, tmp_path) as client:
        root = client.service.project.root
        job = answered(client, tmp_path)
        forget_answers(root, frozenset({"in/absent.mp4"}))
        assert kept_jobs(root) == [job]
        forget_answers(root, frozenset({BEST}))
        assert kept_jobs(root) == []


@pytest.mark.slow
def test_a_damaged_answer_is_no_answer(collection: Path, tmp_path: Path) -> None:
    """It is named by the check of all that is stored."""
    with served(collection, tmp_path) as client:
        root = client.service.project.root
        job = answered(client, tmp_path)
        STORES["answers"].check(root, job)
        root.local_path(f"answers/{job}.json").write_bytes(b'{"name": 1}')
        with pytest.raises(Exception, match="is damaged"):
            STORES["answers"].check(root, job)

    with serving(client.service.project) as client:
        assert client.get(f"/jobs/{job}").status == 404


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", "x" * 15, "\u00e4" * 16, "a" * 15 + "/"])
def test_no_other_name_becomes_a_path(collection: Path, tmp_path: Path, name: str) -> None:
    project = copied(collection, tmp_path)
    assert read_answer(project.root, name) is None
