"""One bundle and a few clips for all tests of the scorer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.scorer import VideoScorer
from tests.scorer.bundles import make_bundle, write_scenes


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without calibration."""
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def scorer(bundle: Path) -> VideoScorer:
    """A scorer with an empty cache."""
    return load_bundle(bundle)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a: pictures 0-5; b: others; copy: 3 s of a within others; two: two parts of a, swapped; bad: no video."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder / "a.mp4", [0, 1, 2, 3, 4, 5])
    write_scenes(folder / "b.mp4", [20, 21, 22, 23])
    write_scenes(folder / "copy.mp4", [30, 31, 32, 33, 2, 3, 4, 34, 35])
    write_scenes(folder / "two.mp4", [40, 3, 4, 5, 41, 42, 0, 1, 43])
    (folder / "bad.mp4").write_text("this is no video")
    return folder
