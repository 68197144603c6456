"""What an index finds, against an exact one in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from hapvr.search.index import FrameIndex
from hapvr.search.settings import IndexSettings
from hapvr.search.vectors import VECTOR, VectorTable
from hapvr.seeding import numpy_rng
from tests.search.exact import DIMS, FRAMES, SMALL, ExactIndex, agree, descriptors, unit, vector_column, vectors_of


def test_frames_are_found_with_their_second_and_similarity(filled: tuple[Path, ExactIndex]) -> None:
    folder, exact = filled
    index = FrameIndex.open(folder, settings=SMALL)
    status = index.status()
    assert (status.videos, status.frames, status.unindexed_frames, status.parts) == (150, 1200, 400, 1)
    for shard in ("a", "c"):  # in the index, and beside it
        frames, videos, regions = exact.shards[shard]
        queries = vectors_of(frames)[8:24]
        found = index.search_frames(queries, 6)
        assert found["query_frame"].to_pylist() == [number for number in range(16) for _ in range(6)]
        best = found.take(pa.array(range(0, len(found), 6)))
        assert best["video_id"].to_pylist() == frames["video_id"][8:24].to_pylist()
        assert best["second"].to_pylist() == frames["second"][8:24].to_pylist()
        np.testing.assert_allclose(best["similarity"].to_numpy(), 1, atol=2e-3)
        agree(found, exact.search_frames(queries, 6))
        for vector in (vectors_of(videos)[3], vectors_of(regions)[3]):
            agree(index.search_videos(vector, 9), exact.search_videos(vector, 9))


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
    assert recall.probes == 300  # frames, and as many videos and regions
    assert recall.found_themselves == 300
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
