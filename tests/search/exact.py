"""Descriptors for an index, and an exact index in memory, as an oracle: the same search as
a `FrameIndex`."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.search.frame_index import VECTOR
from hapvr.search.hashes import FOUND_FRAMES
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings

DIMS = 20  # no multiple of what codes want
# every list is looked at, and the codes are refined: what is found must be what an exact search
# finds
SMALL = IndexSettings(min_indexed_rows=256, code_bits=5, probed_lists=64, refine_factor=8)
FRAMES = 8


class ExactIndex:
    """Compares a query with every row. Takes shards in as `FrameIndex` does."""

    def __init__(self) -> None:
        self.shards: dict[str, pa.Table] = {}

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        self.shards[shard] = frames

    def delete_shard(self, shard: str) -> None:
        self.shards.pop(shard, None)

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        ids, seconds, similarities = self._compare(queries)
        numbers, places = self._nearest(similarities, k)
        rows = [
            numbers,
            [ids[one] for one in places],
            [seconds[one] for one in places],
            similarities[numbers, places],
        ]
        return pa.table(rows, schema=FOUND_FRAMES)

    def _compare(
        self, queries: npt.NDArray[np.floating]
    ) -> tuple[list[str], list[float], npt.NDArray[np.float32]]:
        """Ids and seconds of all rows, and the cosines [Q, N]."""
        tables = [table for table in self.shards.values() if len(table)]
        if not tables:
            return [], [], np.zeros((len(queries), 0), np.float32)
        table = pa.concat_tables(tables)
        width = queries.shape[1]
        column = table[VECTOR].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors = unit(np.asarray(column, np.float16).astype(np.float64).reshape(-1, width))
        cosines = (unit(queries) @ vectors.T).astype(np.float32)
        return table["video_id"].to_pylist(), table["second"].to_pylist(), cosines

    @staticmethod
    def _nearest(
        similarities: npt.NDArray[np.float32], k: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(number of the query, place of the row) of the k nearest of each query, nearest first."""
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        return np.repeat(
            np.arange(len(similarities), dtype=np.int32), order.shape[1]
        ), order.reshape(-1)


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Each row divided by its length."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float64)


def vector_column(vectors: npt.NDArray[np.floating]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(
        pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1]
    )


def descriptors(videos: list[str], *, seed: int) -> pa.Table:
    """Frames that gather around the vector of their video."""
    rng = numpy_rng(seed, "descriptors")
    centres = unit(rng.standard_normal((len(videos), DIMS)))
    frames = unit(
        np.repeat(centres, FRAMES, 0) + 0.1 * rng.standard_normal((len(videos) * FRAMES, DIMS))
    )
    of_frames = {
        "video_id": pa.array([video for video in videos for _ in range(FRAMES)], pa.string()),
        "second": pa.array(np.tile(np.arange(FRAMES), len(videos)), pa.float32()),
        "hash": rng.integers(1, 2**64, len(frames), dtype=np.uint64),
        VECTOR: vector_column(frames),
    }
    return pa.table(of_frames)


def vectors_of(table: pa.Table) -> npt.NDArray[np.float32]:
    return (
        table[VECTOR]
        .combine_chunks()
        .flatten()
        .to_numpy()
        .reshape(len(table), -1)
        .astype(np.float32)
    )


def agree(found: pa.Table, exact: pa.Table) -> None:
    """The same rows, with the same similarities in the same order; of rows as near as the last one,
    any of them."""
    assert len(found) == len(exact)
    np.testing.assert_allclose(
        found["similarity"].to_numpy(), exact["similarity"].to_numpy(), atol=2e-3
    )
    rows = found.to_pylist()
    wanted = exact.to_pylist()
    least: dict[int, float] = {}
    for row in wanted:
        query = row.get("query_frame", 0)
        least[query] = min(least.get(query, 1.0), row["similarity"])

    nearer = [row for row in wanted if row["similarity"] > least[row.get("query_frame", 0)] + 4e-3]
    names = [name for name in found.column_names if name != "similarity"]
    assert {tuple(row[key] for key in names) for row in nearer} <= {
        tuple(row[key] for key in names) for row in rows
    }
