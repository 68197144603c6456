"""One bundle and a few clips for all tests of the scorer."""

from pathlib import Path

import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.scorer import VideoScorer
from tests.scorer.bundles import make_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without calibration."""
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def scorer(bundle: Path) -> VideoScorer:
    """A scorer with an empty cache."""
    return load_bundle(bundle)
