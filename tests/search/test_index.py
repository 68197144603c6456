"""The index against an exact one in memory: shards come, are made again and go; nothing half; damage is named."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.search.index import FrameIndex
from hapvr.search.settings import IndexSettings
from hapvr.search.vectors import VECTOR, VectorTable
from hapvr.seeding import numpy_rng
from tests.search.exact import ExactIndex, unit
from tests.stages.data_projects import small_disk

DIMS = 20  # no multiple of what codes want
# every list is looked at, and the codes are refined: what is found must be what an exact search finds
SMALL = IndexSettings(min_indexed_rows=256, list_rows=64, code_bits=5, probed_lists=64, refine_factor=8)
FRAMES = 8


def vector_column(vectors: npt.NDArray[np.floating]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1])


def descriptors(videos: list[str], *, seed: int) -> tuple[pa.Table, pa.Table]:
    """Frames that gather around the vector of their video, and those vectors."""
    rng = numpy_rng(seed, "descriptors")
    centres = unit(rng.standard_normal((len(videos), DIMS)))
    frames = unit(np.repeat(centres, FRAMES, 0) + 0.1 * rng.standard_normal((len(videos) * FRAMES, DIMS)))
    of_frames = {
        "video_id": [video for video in videos for _ in range(FRAMES)],
        "second": pa.array(np.tile(np.arange(FRAMES), len(videos)), pa.float32()),
        VECTOR: vector_column(frames),
    }
    return pa.table(of_frames), pa.table({"video_id": pa.array(videos, pa.string()), VECTOR: vector_column(centres)})


def vectors_of(table: pa.Table) -> npt.NDArray[np.float32]:
    return table[VECTOR].combine_chunks().flatten().to_numpy().reshape(len(table), -1).astype(np.float32)


def agree(found: pa.Table, exact: pa.Table) -> None:
    """The same rows, with the same similarities in the same order; of rows as near as the last one, any of them."""
    assert len(found) == len(exact)
    np.testing.assert_allclose(found["similarity"].to_numpy(), exact["similarity"].to_numpy(), atol=2e-3)
    rows, wanted = found.to_pylist(), exact.to_pylist()
    least: dict[int, float] = {}
    for row in wanted:
        query = row.get("query_frame", 0)
        least[query] = min(least.get(query, 1.0), row["similarity"])
    nearer = [row for row in wanted if row["similarity"] > least[row.get("query_frame", 0)] + 4e-3]
    names = [name for name in found.column_names if name != "similarity"]
    assert {tuple(row[name] for name in names) for row in nearer} <= {
        tuple(row[name] for name in names) for row in rows
    }


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
        held = {name: (len(videos), len(frames)) for name, (frames, videos) in self.exact.shards.items()}
        status = self.index.status()
        assert {name: (entry.videos, entry.frames) for name, entry in status.shards.items()} == held
        assert (status.videos, status.frames) == tuple(map(sum, zip(*held.values(), strict=True))) if held else (0, 0)
        assert self.index.videos() == {
            name: shard for shard, (_, videos) in self.exact.shards.items() for name in videos["video_id"].to_pylist()
        }

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


TestShardsComeAndGo = ShardsComeAndGo.TestCase
TestShardsComeAndGo.settings = hypothesis_settings(max_examples=6, stateful_step_count=12, deadline=None)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExactIndex]:
    """An index of 1,200 frames in three shards, two thirds of them indexed, and the exact one."""
    folder, exact = tmp_path_factory.mktemp("index"), ExactIndex()
    index = FrameIndex.create(folder, DIMS, {"model": "a"}, settings=SMALL)
    for number, shard in enumerate(("a", "b", "c")):
        rows = descriptors([f"{shard}/{video}.mp4" for video in range(50)], seed=number)
        index.replace_shard(shard, *rows, digest=shard)
        exact.replace_shard(shard, *rows)
        if shard == "b":
            index.optimise()
    return folder, exact


@pytest.fixture
def copy(filled: tuple[Path, ExactIndex], tmp_path: Path) -> tuple[Path, ExactIndex]:
    """A copy of it that a test may change."""
    shutil.copytree(filled[0], tmp_path / "index")
    return tmp_path / "index", filled[1]


def test_frames_are_found_with_their_second_and_similarity(filled: tuple[Path, ExactIndex]) -> None:
    folder, exact = filled
    index = FrameIndex.open(folder, settings=SMALL)
    status = index.status()
    assert (status.videos, status.frames, status.unindexed_frames, status.parts) == (150, 1200, 400, 1)
    for shard in ("a", "c"):  # in the index, and beside it
        frames, videos = exact.shards[shard]
        queries = vectors_of(frames)[8:24]
        found = index.search_frames(queries, 6)
        assert found["query_frame"].to_pylist() == [number for number in range(16) for _ in range(6)]
        best = found.take(pa.array(range(0, len(found), 6)))
        assert best["video_id"].to_pylist() == frames["video_id"][8:24].to_pylist()
        assert best["second"].to_pylist() == frames["second"][8:24].to_pylist()
        np.testing.assert_allclose(best["similarity"].to_numpy(), 1, atol=2e-3)
        agree(found, exact.search_frames(queries, 6))
        agree(index.search_videos(vectors_of(videos)[3], 9), exact.search_videos(vectors_of(videos)[3], 9))


def test_codes_alone_find_nearly_the_same(filled: tuple[Path, ExactIndex]) -> None:
    """An index answers without refinement; rows beside it are compared exactly all the same."""
    folder, exact = filled
    index = FrameIndex.open(folder, settings=SMALL.model_copy(update={"refine_factor": 0}))
    for shard, tolerance in (("a", 0.1), ("c", 2e-3)):
        queries = vectors_of(exact.shards[shard][0])[8:24]
        found, wanted = index.search_frames(queries, 6), exact.search_frames(queries, 6)
        assert found["query_frame"].to_pylist() == [number for number in range(16) for _ in range(6)]
        assert (np.diff(found["similarity"].to_numpy().reshape(16, 6)) <= 0).all()
        rows, right = (
            set(zip(*(table[name].to_pylist() for name in ("query_frame", "video_id", "second")), strict=True))
            for table in (found, wanted)
        )
        assert len(rows & right) > 0.8 * len(right)
        own = index.search_frames(queries, 1)["similarity"].to_numpy()
        np.testing.assert_allclose(own, 1, atol=tolerance)
    assert index.verify(probes=100).recall > 0.97


def test_an_index_with_codes_of_one_bit_is_refined(filled: tuple[Path, ExactIndex], tmp_path: Path) -> None:
    """As earlier versions built it; its similarities are exact, whatever the settings say now."""
    earlier = SMALL.model_copy(update={"code_bits": 1})
    index = FrameIndex.create(tmp_path / "earlier", DIMS, {}, settings=earlier)
    for shard, rows in filled[1].shards.items():
        index.replace_shard(shard, *rows)
    index.optimise()
    now = FrameIndex.open(tmp_path / "earlier", settings=SMALL.model_copy(update={"refine_factor": 0}))
    queries = vectors_of(filled[1].shards["a"][0])[8:24]
    np.testing.assert_allclose(now.search_frames(queries, 1)["similarity"].to_numpy(), 1, atol=2e-3)


def test_recall_is_measured(filled: tuple[Path, ExactIndex], tmp_path: Path) -> None:
    """A good index finds all; one whose lists are hardly looked at does not, and says so."""
    index = FrameIndex.open(filled[0], settings=SMALL)
    recall = index.verify(probes=100)
    assert recall.probes == 200  # frames, and as many videos
    assert recall.found_themselves == 200
    assert recall.recall > 0.97
    poor = IndexSettings(min_indexed_rows=256, list_rows=16, code_bits=1, probed_lists=1, refine_factor=1)
    bad = FrameIndex.create(tmp_path / "poor", DIMS, {}, settings=poor)
    for shard, rows in filled[1].shards.items():
        bad.replace_shard(shard, *rows)
    bad.optimise()
    assert bad.verify(probes=100).recall < 0.9


def test_every_row_is_in_the_list_of_its_nearest_centre(tmp_path: Path) -> None:
    """With as many centres as large collections have, a row is found in the one list that is nearest to it."""
    dims, lists, list_rows = 2048, 513, 16  # a million values of centres
    rng = numpy_rng("lists")
    scenes = rng.standard_normal((40, dims), np.float32)
    frames = scenes[rng.integers(len(scenes), size=lists * list_rows)]
    frames += 0.5 * rng.standard_normal(frames.shape, np.float32)
    settings = IndexSettings(min_indexed_rows=256, list_rows=list_rows, probed_lists=1)
    index = FrameIndex.create(tmp_path / "index", dims, {}, settings=settings)
    column = vector_column(frames)
    seconds = pa.array(np.arange(len(frames)), pa.float32())
    index.replace_shard(
        "a",
        pa.table({"video_id": ["v.mp4"] * len(frames), "second": seconds, VECTOR: column}),
        pa.table({"video_id": ["v.mp4"], VECTOR: column[:1]}),
    )
    index.optimise()
    probes = 400
    found = index.search_frames(vectors_of(pa.table({VECTOR: column[:probes]})), 10)
    themselves = found["second"].to_numpy() == found["query_frame"].to_numpy()
    assert themselves.sum() == probes


def test_large_tables_have_longer_lists_rather_than_more(tmp_path: Path) -> None:
    """4,200 lists of 16 rows would be too many."""
    import lance

    settings = IndexSettings(min_indexed_rows=256, list_rows=16)
    vectors = numpy_rng("many lists").standard_normal((4200 * 16, 8), np.float32)
    folder = str(tmp_path / "frames.lance")
    table = VectorTable.create(folder, [pa.field("name", pa.string())], dims=8, settings=settings)
    table.append(pa.table({"name": ["a"] * len(vectors)}), vectors).optimise()
    dataset = lance.dataset(folder)
    [index] = dataset.describe_indices()
    assert len(dataset.stats.index_stats(index.name)["indices"][0]["partitions"]) == 4096


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


def test_collections_of_nothing_and_of_one_video(tmp_path: Path) -> None:
    index = FrameIndex.create(tmp_path, DIMS, {}, settings=SMALL)
    query = unit(np.ones((1, DIMS)))
    assert len(index.search_frames(query, 5)) == len(index.search_videos(query[0], 5)) == 0
    assert len(index.search_frames(query[:0], 5)) == 0
    assert index.verify().probes == 0
    index.optimise()
    rows = descriptors(["own/only.mp4"], seed=1)
    index.replace_shard("own", *rows)
    index.optimise()
    assert index.search_videos(query[0], 5)["video_id"].to_pylist() == ["own/only.mp4"]
    assert len(index.search_frames(query, 50)) == FRAMES
    assert index.verify().recall == 1


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (np.ones((2, DIMS + 1)), "wanted \\[queries, 20\\]"),
        (np.ones(DIMS), "wanted \\[queries, 20\\]"),
        (np.full((1, DIMS), np.nan), "not finite"),
    ],
)
def test_wrong_queries_are_refused(
    filled: tuple[Path, ExactIndex], queries: npt.NDArray[np.floating], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        FrameIndex.open(filled[0]).search_frames(queries, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns(["video_id"]), "wanted"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.ones((len(table), 3)))), "lists of 20 floats"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.zeros((len(table), DIMS)))), "zero or not finite"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.full((len(table), DIMS), np.inf))), "not finite"),
    ],
)
def test_wrong_rows_are_refused_and_change_nothing(copy: tuple[Path, ExactIndex], change: Any, said: str) -> None:
    index = FrameIndex.open(copy[0], settings=SMALL)
    before = index.status()
    frames, videos = descriptors(["a/1.mp4"], seed=1)
    with pytest.raises(ArgumentError, match=said):
        index.replace_shard("a", change(frames), videos)
    assert FrameIndex.open(copy[0], settings=SMALL).status() == before


def test_there_is_no_index_yet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hapvr index build"):
        FrameIndex.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ["manifest", "rows", "codes", "state", "cut state", "format"])
def test_damage_is_named(copy: tuple[Path, ExactIndex], kind: str) -> None:
    """What is gone or cut gives an error that names the place and the remedy, not a wrong answer or a crash."""
    folder, exact = copy
    frames = folder / "frames.lance"
    patterns = {"manifest": "_versions/*", "rows": "data/*", "codes": "_indices/*/*"}
    if kind in patterns:
        for path in frames.glob(patterns[kind]):
            path.write_bytes(path.read_bytes()[:40])
    elif kind == "state":
        (folder / "index.json").write_text("[]")
    elif kind == "cut state":
        (folder / "index.json").write_text('{"a"')
    else:
        (folder / "index.json").write_text('{"format_version": 99}')
    with pytest.raises((DamagedError, DataError)) as caught:
        FrameIndex.open(folder, settings=SMALL).search_frames(vectors_of(exact.shards["a"][0])[:2], 5)
    assert "hapvr index build" in str(caught.value) or kind in ("state", "cut state")


@pytest.mark.parametrize("value", [None, [[1]], "x", -1, math.nan, 10**30, {"frames": "x", "videos": 1}], ids=str)
@pytest.mark.parametrize("name", ["revision", "dims", "versions", "shards", "replaced"])
def test_a_wrong_value_of_the_state_is_named(tmp_path: Path, name: str, value: object) -> None:
    """One sentence, whatever somebody wrote there."""
    FrameIndex.create(tmp_path, DIMS, {}, settings=SMALL)
    place = tmp_path / "index.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {name: value}))
    with pytest.raises(DamagedError, match=r"index\.json below .* is damaged \(.*hapvr index build"):
        FrameIndex.open(tmp_path, settings=SMALL)


def test_a_full_disk_is_named_and_changes_nothing(copy: tuple[Path, ExactIndex]) -> None:
    """A shard and a build that do not fit are refused with what to do; the index answers as before, and takes them later."""
    folder, exact = copy
    index = FrameIndex.open(folder, settings=SMALL)
    rows = descriptors([f"d/{video}.mp4" for video in range(200)], seed=5)
    with small_disk(5000), pytest.raises(DataError, match="Free space"):
        index.replace_shard("d", *rows)
    with small_disk(5000), pytest.raises(DataError, match="Free space"):
        index.optimise(anew=True)
    queries = vectors_of(exact.shards["a"][0])[:3]
    for found in (index, FrameIndex.open(folder, settings=SMALL)):
        agree(found.search_frames(queries, 5), exact.search_frames(queries, 5))
    index.replace_shard("d", *rows)
    exact.replace_shard("d", *rows)
    index.optimise(anew=True)
    agree(index.search_frames(queries, 5), exact.search_frames(queries, 5))


def test_an_index_of_half_precision_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of an index that an earlier version made keep their precision; new shards join them and are found."""
    monkeypatch.setattr("hapvr.search.vectors.STORED", pa.float16())
    old = FrameIndex.create(tmp_path / "index", DIMS, {}, settings=SMALL)
    old.replace_shard("a", *descriptors(["a1", "a2"], seed=1))
    monkeypatch.undo()
    index = FrameIndex.open(tmp_path / "index", settings=SMALL)
    frames, videos = descriptors(["b1"], seed=2)
    index.replace_shard("b", frames, videos)
    found = index.search_frames(vectors_of(frames)[:1], 1)
    assert found["video_id"].to_pylist() == ["b1"]
    assert found["similarity"].to_numpy() == pytest.approx(1.0, abs=2e-3)
