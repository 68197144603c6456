"""Shards come, are made again and go, as in an exact index in memory; readers and killed writers see nothing half."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hapvr.search.index import FrameIndex
from hapvr.seeding import numpy_rng
from tests.search.exact import DIMS, FRAMES, SMALL, ExactIndex, agree, descriptors, unit, vectors_of


class ShardsComeAndGo(RuleBasedStateMachine):
    """Any order of changes leaves what an exact index says, also for who opens it anew."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hapvr-index-"))
        self.index = FrameIndex.create(self.folder, DIMS, {"model": "a"}, settings=SMALL)
        self.exact = ExactIndex()

    @rule(shard=st.sampled_from(["own-00000", "l'été-00001", "x"]), videos=st.integers(0, 12), seed=st.integers(0, 5))
    def replace_shard(self, shard: str, videos: int, seed: int) -> None:
        # Not the vectors of another shard: which of two equal ones comes first is nobody's business.
        rows = descriptors([f"{shard}/'{number}' ünd.mp4" for number in range(videos)], seed=len(shard) * 10 + seed)
        self.index.replace_shard(shard, *rows, digest=str(seed))
        self.exact.replace_shard(shard, *rows)

    @rule(shard=st.sampled_from(["own-00000", "x", "absent"]))
    def delete_shard(self, shard: str) -> None:
        self.index.delete_shard(shard)
        self.exact.delete_shard(shard)

    @rule(numbers=st.sets(st.integers(0, 12), max_size=3))
    def delete_videos(self, numbers: set[int]) -> None:
        ids = [f"{shard}/'{number}' ünd.mp4" for number in numbers for shard in ("own-00000", "x")]
        self.index.delete_videos(ids)
        self.exact.delete_videos(ids)

    @rule()
    def open_again(self) -> None:
        self.index = FrameIndex.open(self.folder, settings=SMALL)

    @rule()
    def optimise(self) -> None:
        self.index.optimise()

    @invariant()
    def answers_as_the_exact_index(self) -> None:
        if not hasattr(self, "index"):
            return
        queries = unit(numpy_rng(7, "queries").standard_normal((3, DIMS)))
        found, exact = self.index.search_videos(queries[0], 5), self.exact.search_videos(queries[0], 5)
        agree(found, exact)
        held = {name: (len(videos), len(frames)) for name, (frames, videos, _) in self.exact.shards.items()}
        status = self.index.status()
        assert {name: (entry.videos, entry.frames) for name, entry in status.shards.items()} == held
        assert (status.videos, status.frames) == tuple(map(sum, zip(*held.values(), strict=True))) if held else (0, 0)
        assert self.index.videos() == {
            name: shard
            for shard, (_, videos, _) in self.exact.shards.items()
            for name in videos["video_id"].to_pylist()
        }

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


TestShardsComeAndGo = ShardsComeAndGo.TestCase
TestShardsComeAndGo.settings = hypothesis_settings(max_examples=6, stateful_step_count=12, deadline=None)


def test_rows_become_parts_of_the_index_and_many_parts_one(copy: tuple[Path, ExactIndex]) -> None:
    folder, exact = copy
    index = FrameIndex.open(folder, settings=SMALL.model_copy(update={"max_parts": 3}))
    index.optimise()
    seen = [index.status().parts]
    for number in range(4):
        rows = descriptors([f"new{number}/{video}.mp4" for video in range(20)], seed=10 + number)
        index.replace_shard(f"new{number}", *rows)
        exact.replace_shard(f"new{number}", *rows)
        index.optimise()
        status = index.status()
        assert status.unindexed_frames == 0
        seen.append(status.parts)
        queries = vectors_of(rows[0])[:5]
        agree(index.search_frames(queries, 4), exact.search_frames(queries, 4))
    assert seen == [2, 3, 1, 2, 3]
    for number in range(4):
        exact.delete_shard(f"new{number}")


def test_few_new_rows_wait_beside_the_index(copy: tuple[Path, ExactIndex]) -> None:
    folder, _ = copy
    index = FrameIndex.open(folder, settings=SMALL)
    index.optimise()
    index.replace_shard("few", *descriptors(["few/1.mp4"], seed=3))
    revision = index.status().revision
    index.optimise()
    assert index.status().unindexed_frames == FRAMES
    assert index.status().revision == revision  # nothing was to be done


def test_an_open_index_stays_at_its_version(copy: tuple[Path, ExactIndex]) -> None:
    folder, exact = copy
    reader, writer = (FrameIndex.open(folder, settings=SMALL) for _ in range(2))
    query = vectors_of(exact.shards["b"][0])[:1]
    before = reader.search_frames(query, 5)
    writer.replace_shard("b", *descriptors(["b/other.mp4"], seed=77))
    writer.delete_videos(["a/1.mp4"])
    writer.optimise(anew=True)
    assert reader.search_frames(query, 5) == before
    assert reader.status().videos == 150
    reader.refresh()
    assert reader.status().videos == writer.status().videos == 100
    assert "b/0.mp4" not in reader.search_frames(query, 5)["video_id"].to_pylist()


def test_what_was_just_replaced_stays_readable(copy: tuple[Path, ExactIndex]) -> None:
    """However long ago it was made, and though the clock is set a day ahead; later its files go."""
    folder, exact = copy
    brief = SMALL.model_copy(update={"keep_versions_s": 0.0})
    reader, writer = (FrameIndex.open(folder, settings=brief) for _ in range(2))
    query = vectors_of(exact.shards["b"][0])[:1]
    files = {path for path in folder.rglob("*") if path.suffix in (".lance", ".manifest", ".idx")}
    writer.replace_shard("b", *descriptors(["b/other.mp4"], seed=77))
    writer.optimise(anew=True)
    assert reader.search_frames(query, 5).num_rows == 5
    later = FrameIndex.open(folder, settings=brief)
    later.replace_shard("b", *descriptors(["b/third.mp4"], seed=78))
    later.optimise(anew=True)
    assert not all(path.exists() for path in files)
    assert later.verify().recall == writer.verify().recall == 1


@pytest.mark.parametrize(("ahead_s", "kept"), [(-3600, True), (-7000, False), (86_400, True)])
def test_replaced_versions_go_by_when_they_were_replaced(
    copy: tuple[Path, ExactIndex], ahead_s: float, kept: bool
) -> None:
    """A time in the future, of a clock that has been set back since, counts as now."""
    folder, exact = copy
    patient = SMALL.model_copy(update={"keep_versions_s": 5000.0})
    opened = json.loads((folder / "index.json").read_text())["versions"]
    reader = FrameIndex.open(folder, settings=patient)
    FrameIndex.open(folder, settings=patient).replace_shard("b", *descriptors(["b/other.mp4"], seed=77))
    state = json.loads((folder / "index.json").read_text())
    state["replaced"][-1]["at_s"] += ahead_s
    (folder / "index.json").write_text(json.dumps(state))
    writer = FrameIndex.open(folder, settings=patient)
    writer.delete_shard("b")
    writer.optimise(anew=True)
    replaced = json.loads((folder / "index.json").read_text())["replaced"]
    assert all(entry["at_s"] <= time.time() for entry in replaced)
    assert (opened in [entry["versions"] for entry in replaced]) == kept
    if kept:
        assert reader.search_frames(vectors_of(exact.shards["b"][0])[:1], 5).num_rows == 5


def test_what_a_killed_writer_left_is_not_seen(copy: tuple[Path, ExactIndex]) -> None:
    """A writer that dies between the two tables, or before index.json, has changed nothing; the next one goes on."""
    folder, exact = copy
    state = (folder / "index.json").read_bytes()
    FrameIndex.open(folder, settings=SMALL).replace_shard("b", *descriptors(["b/other.mp4"], seed=77))
    (folder / "index.json").write_bytes(state)
    index = FrameIndex.open(folder, settings=SMALL)
    assert index.status().videos == 150
    query = vectors_of(exact.shards["b"][0])[:3]
    agree(index.search_frames(query, 5), exact.search_frames(query, 5))
    index.replace_shard("d", *descriptors(["d/1.mp4"], seed=78))
    assert FrameIndex.open(folder, settings=SMALL).status().videos == 151
    agree(index.search_frames(query, 5), exact.search_frames(query, 5))


def test_an_index_without_regions_goes_on(tmp_path: Path) -> None:
    """One that an earlier version made: whole videos are found, and shards that are taken in bring their regions."""
    old, new = (descriptors([f"{shard}1", f"{shard}2"], seed=seed) for shard, seed in (("a", 1), ("b", 2)))
    FrameIndex.create(tmp_path, DIMS, {}, settings=SMALL).replace_shard("a", *old[:2])
    state = json.loads((tmp_path / "index.json").read_text())
    for versions in (state["versions"], *(entry["versions"] for entry in state["replaced"])):
        del versions["regions"]
    (tmp_path / "index.json").write_text(json.dumps(state))
    shutil.rmtree(tmp_path / "regions.lance")
    index = FrameIndex.open(tmp_path, settings=SMALL)
    assert index.search_videos(vectors_of(old.videos)[1], 1)["video_id"].to_pylist() == ["a2"]
    index.replace_shard("b", *new)
    index.optimise()
    for reader in (index, FrameIndex.open(tmp_path, settings=SMALL)):
        (found,) = reader.search_videos(vectors_of(new.regions)[2], 1).to_pylist()
        assert found["video_id"] == "b1"
        assert found["similarity"] > 0.99
        assert reader.search_videos(vectors_of(old.videos)[1], 1)["video_id"].to_pylist() == ["a2"]
        assert reader.verify().recall == 1


def test_an_index_of_half_precision_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of an index that an earlier version made keep their precision; new shards join them and are found."""
    monkeypatch.setattr("hapvr.search.vectors.STORED", pa.float16())
    old = FrameIndex.create(tmp_path / "index", DIMS, {}, settings=SMALL)
    old.replace_shard("a", *descriptors(["a1", "a2"], seed=1))
    monkeypatch.undo()
    index = FrameIndex.open(tmp_path / "index", settings=SMALL)
    rows = descriptors(["b1"], seed=2)
    index.replace_shard("b", *rows)
    found = index.search_frames(vectors_of(rows.frames)[:1], 1)
    assert found["video_id"].to_pylist() == ["b1"]
    assert found["similarity"].to_numpy() == pytest.approx(1.0, abs=2e-3)
