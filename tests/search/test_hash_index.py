"""Look-up of hashes: what a comparison with all of them finds, no more and no less."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hapvr.search.hash_index import RADIUS, HashIndex
from hapvr.seeding import numpy_rng
from hapvr.video.hashes import NO_HASH, distances


def hashes_of(seed: int, count: int) -> np.ndarray:
    """Hashes with 32 bits set, as pictures have them."""
    rng = numpy_rng(seed, "hashes")
    ones = rng.permuted(np.tile(np.arange(64) % 2, (count, 1)), axis=1).astype(np.uint8)
    return np.packbits(ones, axis=1).view(np.uint64).ravel()


@given(st.integers(0, 1000), st.integers(1, 50))
def test_every_frame_within_the_radius_is_found(seed: int, k: int) -> None:
    """Queries differ from stored hashes in 0 to 14 bits; some frames have no hash on either side."""
    rng = numpy_rng(seed, "flips")
    stored = hashes_of(seed, 300)
    stored[200:] = stored[:100]
    asked = stored[rng.integers(0, 300, 20)]
    for place in range(20):
        for bit in rng.permutation(64)[: int(rng.integers(0, 15))]:
            asked[place] ^= np.uint64(1) << np.uint64(bit)
    stored[::7], asked[3] = NO_HASH, NO_HASH
    frames = pa.table(
        {"video_id": [f"v{row}" for row in range(300)], "second": np.zeros(300, np.float32), "hash": stored}
    )
    found = HashIndex(frames).search_hashes(asked, k)
    away = distances(asked[:, None], stored[None])
    for query in range(20):
        near: list[int] = (
            np.sort(away[query][(away[query] <= RADIUS) & (stored != NO_HASH)])[:k].tolist() if asked[query] else []
        )
        rows = [row for row in found.to_pylist() if row["query_frame"] == query]
        bits = [away[query][int(row["video_id"][1:])] for row in rows]
        assert bits == near
        np.testing.assert_allclose([row["similarity"] for row in rows], 1 - np.array(bits) / (RADIUS + 1), rtol=1e-6)


def test_an_index_without_frames_finds_nothing() -> None:
    empty = pa.table(
        {"video_id": pa.array([], pa.string()), "second": pa.array([], pa.float32()), "hash": pa.array([], pa.uint64())}
    )
    assert len(HashIndex(empty).search_hashes(hashes_of(0, 3), 5)) == 0
