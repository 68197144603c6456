"""PDQ is Meta's, and lists of its hashes are read as people have them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hapvr.errors import DataError
from hapvr.seeding import numpy_rng
from hapvr.tables import MAX_USER_BYTES
from hapvr.video.pdq import distances, pdq, read_hashes

A, B = "a1" * 32, "B2" * 32


def waves(height: float) -> NDArray[np.uint8]:
    y, x = np.mgrid[0:360, 0:500]
    colours = [127 + height * np.sin(x / a + y / b) for a, b in ((9, 17), (23, 7), (31, 40))]
    return np.stack(colours).astype(np.uint8)


WAVES = "156affc0016affc0806affc0a06affc5a86affdf556d02c0556b004a557f2bc0"
NOISE = "cc7e89cce35501c8417eabddcd560780f50d6327e48d15cc362f8c9bb17a28cf"


@pytest.mark.parametrize(
    ("picture", "wanted"),
    [
        (waves(120), (WAVES, 100)),
        (waves(10), (WAVES, 42)),
        (numpy_rng(0, "pdq").integers(0, 256, (3, 131, 57), np.uint8), (NOISE, 100)),
    ],
)
def test_hash_and_quality_are_metas(picture: NDArray[np.uint8], wanted: tuple[str, int]) -> None:
    """Of the package pdqhash 0.2.8, which wraps Meta's own code."""
    digest, quality = pdq(picture)
    assert (digest.tobytes().hex(), quality) == wanted


def test_distances_are_those_of_a_loop_over_all_pairs() -> None:
    """Also in several blocks, of opposite hashes, and where there is no other."""
    one = numpy_rng(0, "hashes").integers(0, 256, (1500, 32), np.uint8)
    other = np.concatenate([one[:900] ^ 255, one[:5] ^ 1])
    bits = np.array([[np.bitwise_count(ours ^ theirs).sum() for theirs in other[-5:]] for ours in one])
    near, back = distances(one, other)
    assert near[:5].tolist() == back[-5:].tolist() == [32] * 5 == bits.min(axis=0).tolist()
    assert distances(one[:1], one[:1] ^ 255) == (256, 256)
    assert distances(one[:0], one[:2])[1].tolist() == [256, 256]


def test_lists_are_text_csv_or_lines_of_vpdq(tmp_path: Path) -> None:
    """Lines that cannot be used are named; those of vPDQ of a low quality, empty ones and a header are not."""
    lines = (
        "hash,label",
        A,
        "",
        f'"{B}", "bad, thing"',
        f"3,49,{A},2.000",
        f"in/v.mp4,3,50,{A},2.000",
        A[1:],
        f"{A},{B}",
        "x",
    )
    (tmp_path / "l[1].csv").write_text("\ufeff" + "\r\n".join(lines))
    with pytest.warns(UserWarning, match=r"l\[1\].csv: lines without a hash, or with several, are left out: 7, 8, 9$"):
        hashes, places = read_hashes(tmp_path / "l[1].csv")
    assert [digest.tobytes().hex() for digest in hashes] == [A, B.lower(), A]
    assert places == [(2, ""), (4, "bad, thing"), (6, "in/v.mp4, 3, 50, 2.000")]


def test_a_file_without_a_hash_is_refused(tmp_path: Path) -> None:
    """So is one that is too large to be a list."""
    (tmp_path / "words.txt").write_text(f"hash\n{A}0\n")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(MAX_USER_BYTES + 1)
    for name in ("words.txt", "large.txt"):
        with pytest.raises(DataError, match="wanted a text or CSV file as `hapvr pdq export` writes it"):
            read_hashes(tmp_path / name)
