"""An exact index in memory, as an oracle: the same two searches as `hapvr.search.index.FrameIndex`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.search.index import FOUND_FRAMES, FOUND_VIDEOS
from hapvr.search.vectors import VECTOR


class ExactIndex:
    """Compares a query with every row. Takes shards in as `FrameIndex` does."""

    def __init__(self) -> None:
        self.shards: dict[str, tuple[pa.Table, pa.Table]] = {}

    def replace_shard(self, shard: str, frames: pa.Table, videos: pa.Table, *, digest: str = "") -> None:
        self.shards[shard] = frames, videos

    def delete_shard(self, shard: str) -> None:
        self.shards.pop(shard, None)

    def delete_videos(self, video_ids: list[str]) -> None:
        def keep(table: pa.Table) -> pa.Table:
            return table.filter(pa.array([name not in video_ids for name in table["video_id"].to_pylist()], pa.bool_()))

        self.shards = {name: (keep(frames), keep(videos)) for name, (frames, videos) in self.shards.items()}

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        ids, seconds, similarities = self._compare(queries, 0)
        numbers, places = self._nearest(similarities, k)
        rows = [
            numbers,
            [ids[place] for place in places],
            [seconds[place] for place in places],
            similarities[numbers, places],
        ]
        return pa.table(rows, schema=FOUND_FRAMES)

    def search_videos(self, query: npt.NDArray[np.floating], k: int) -> pa.Table:
        ids, _, similarities = self._compare(query[None], 1)
        numbers, places = self._nearest(similarities, k)
        return pa.table([[ids[place] for place in places], similarities[numbers, places]], schema=FOUND_VIDEOS)

    def _compare(
        self, queries: npt.NDArray[np.floating], part: int
    ) -> tuple[list[str], list[float], npt.NDArray[np.float32]]:
        """Ids and seconds of all rows, and the cosines [Q, N]."""
        tables = [shard[part] for shard in self.shards.values() if len(shard[part])]
        if not tables:
            return [], [], np.zeros((len(queries), 0), np.float32)
        table = pa.concat_tables(tables)
        width = queries.shape[1]
        column = table[VECTOR].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors = unit(np.asarray(column, np.float16).astype(np.float64).reshape(-1, width))
        seconds = table["second"].to_pylist() if part == 0 else []
        return table["video_id"].to_pylist(), seconds, (unit(queries) @ vectors.T).astype(np.float32)

    @staticmethod
    def _nearest(similarities: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """(number of the query, place of the row) of the k nearest of each query, nearest first."""
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        return np.repeat(np.arange(len(similarities), dtype=np.int32), order.shape[1]), order.reshape(-1)


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Each row divided by its length."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float64)
