"""Packaged networks that were compiled before: they compute the same, and damage is replaced."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hapvr.networks.copies import is_package_usable, open_packaged_copy_network
from hapvr.networks.settings import BackboneConfig
from hapvr.seeding import numpy_rng

pytestmark = pytest.mark.skipif(
    not is_package_usable(), reason="the package with the networks is not installed"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled networks of this test are stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hapvr" / "networks"


def vectors() -> npt.NDArray[np.float32]:
    """What a network that was opened anew makes of two pictures."""
    config = BackboneConfig.model_validate(
        {"architecture": "sscd_distilled", "weights": {"source": "packaged"}, "crop_px": 288}
    )
    pictures = numpy_rng("pictures").integers(0, 256, (2, 3, 288, 288), dtype=np.uint8)
    return open_packaged_copy_network(config).embedder(None, "cpu")(pictures)


def test_a_network_that_was_compiled_before_computes_the_same(cache: Path) -> None:
    compiled_now = vectors()
    (file,) = cache.iterdir()
    written_ns = file.stat().st_mtime_ns
    np.testing.assert_array_equal(vectors(), compiled_now)
    assert file.stat().st_mtime_ns == written_ns


@pytest.mark.parametrize("kept_bytes", [0, 100, -1], ids=["empty", "cut", "one byte short"])
def test_a_damaged_file_is_replaced(cache: Path, kept_bytes: int) -> None:
    expected = vectors()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:kept_bytes])
    np.testing.assert_array_equal(vectors(), expected)
    assert len(file.read_bytes()) == len(whole)


def test_a_changed_byte_is_noticed(cache: Path) -> None:
    expected = vectors()
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    np.testing.assert_array_equal(vectors(), expected)


def test_a_cache_that_others_may_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert vectors().shape == (2, 1, 512)
    assert list(cache.iterdir()) == []
