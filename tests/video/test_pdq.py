"""PDQ is Meta's, and lists of its hashes are read as people have them."""

from pathlib import Path

import numpy as np
import pytest

from hapvr.errors import DataError
from hapvr.seeding import numpy_rng
from hapvr.tables import MAX_USER_BYTES
from hapvr.video.pdq import distances, pdq, read_hashes

A = "a1" * 32
B = "B2" * 32


def test_hash_and_quality_are_metas() -> None:
    """As the package pdqhash 0.2.8, which wraps Meta's own code, has them."""
    y, x = np.mgrid[0:360, 0:500]
    waves = np.stack([np.sin(x / a + y / b) for a, b in ((9, 17), (23, 7), (31, 40))])
    noise = numpy_rng(0, "pdq").integers(0, 256, (3, 131, 57), np.uint8)
    pictures = (127 + 120 * waves).astype(np.uint8), (127 + 10 * waves).astype(np.uint8), noise
    of_waves = "156affc0016affc0806affc0a06affc5a86affdf556d02c0556b004a557f2bc0"
    of_noise = "cc7e89cce35501c8417eabddcd560780f50d6327e48d15cc362f8c9bb17a28cf"
    hashed = [(digest.tobytes().hex(), quality) for digest, quality in map(pdq, pictures)]
    assert hashed == [(of_waves, 100), (of_waves, 42), (of_noise, 100)]


def test_distances_are_those_of_a_loop_over_all_pairs() -> None:
    """Also in several blocks, of opposite hashes, and where there is no other."""
    first_hashes = numpy_rng(0, "hashes").integers(0, 256, (1500, 32), np.uint8)
    second_hashes = np.concatenate([first_hashes[:900] ^ 255, first_hashes[:5] ^ 1])
    near, back = distances(first_hashes, second_hashes)
    assert near[:5].tolist() == back[-5:].tolist() == [32] * 5
    assert back[0] == min(np.bitwise_count(ours ^ second_hashes[0]).sum() for ours in first_hashes)
    assert distances(first_hashes[:1], first_hashes[:1] ^ 255) == (256, 256)
    assert distances(first_hashes[:0], first_hashes[:2])[1].tolist() == [256, 256]


def test_lists_are_text_csv_or_lines_of_vpdq(tmp_path: Path) -> None:
    """Lines that cannot be used are named; those of a low quality, empty ones and a header are
    not."""
    good = ("hash,label", A, "", f'"{B}", "bad, thing"', "", f"in/v.mp4,3,50,{A},2.000")
    (tmp_path / "l[1].csv").write_text("\ufeff" + "\r\n".join((*good, A[1:], f"{A},{B}", "x")))
    with pytest.warns(
        UserWarning,
        match=r"l\[1\].csv: lines without a hash, or with several, are left out: 7, 8, 9$",
    ):
        hashes, places = read_hashes(tmp_path / "l[1].csv")

    assert [digest.tobytes().hex() for digest in hashes] == [A, B.lower(), A]
    assert places == [(2, ""), (4, "bad, thing"), (6, "in/v.mp4, 3, 50, 2.000")]


@pytest.mark.parametrize(
    "rows",
    [
        f'hash,label,Quality\n{A},"a, 90",49\n{B},"a, 12",50',
        f'"3", "49", "{A}", "2e-5", "x"\n3,90.0,{B},0',
        f"id,votes,hash,seen\n17,3,{B},2",
    ],
    ids=["a column", "quoted, without names", "without a quality"],
)
def test_lines_of_a_low_quality_are_left_out_and_not_named(tmp_path: Path, rows: str) -> None:
    (tmp_path / "low.csv").write_text(rows)
    hashes, _ = read_hashes(tmp_path / "low.csv")
    assert [digest.tobytes().hex() for digest in hashes] == [B.lower()]


@pytest.mark.parametrize("name", ["words.txt", "other.txt", "long.txt", "large.txt"])
def test_a_file_without_a_hash_or_too_large_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "words.txt").write_text(f"hash\n{A}0\n")
    (tmp_path / "other.txt").write_text(f"{A}\n" + "1\n" * 200_000)
    (tmp_path / "long.txt").write_text(f"{A}\n{'a,' * 3000}{A}\n")
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(MAX_USER_BYTES + 1)
    with pytest.raises(
        DataError, match="expected a text or CSV file as `hapvr pdq export` writes it"
    ):
        read_hashes(tmp_path / name)
