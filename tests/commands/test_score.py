"""`hapvr score`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import fit_calibration
from tests.commands.conftest import Call
from tests.scorer.bundles import make_bundle, write_scenes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle; a.mp4, copy.mp4 with 3 s of a, b.mp4, and bad.mp4."""
    folder = tmp_path_factory.mktemp("score")
    make_bundle(folder, calibration=fit_calibration([0.0] * 10, [-0.004] * 20, source={}, frame_threshold=0.7))
    write_scenes(folder / "a.mp4", [0, 1, 2, 3, 4, 5])
    write_scenes(folder / "b.mp4", [20, 21, 22, 23])
    write_scenes(folder / "copy.mp4", [30, 31, 2, 3, 4, 34])
    (folder / "bad.mp4").write_text("no video")
    return folder


def test_score_tells_similarity_probability_and_segments(call: Call, folder: Path) -> None:
    """A line per reference, and a line per matching part with its times."""
    done = call(
        "score", folder / "a.mp4", folder / "copy.mp4", folder / "b.mp4", "--model", folder / "bundle", "--segments"
    )
    assert done.code == 0, done.error
    lines = done.out.splitlines()
    (wanted,) = load_bundle(folder / "bundle").score_pairs([(folder / "a.mp4", folder / "copy.mp4")])
    assert wanted.probability is not None
    assert lines[0] == f"{wanted.similarity:+.4f}  {100 * wanted.probability:5.1f} %  {folder / 'copy.mp4'}"
    assert lines[1].startswith("    2.0-5.0 s shows what 2.0-5.0 s does")
    assert lines[2].endswith("b.mp4")
    assert lines[3] == "    no matching segments"


def test_score_as_json_has_thresholds_and_errors(call: Call, folder: Path) -> None:
    """Rows in order, the threshold table, and exit 1 for a video that cannot be read."""
    done = call("score", folder / "a.mp4", folder / "bad.mp4", folder / "b.mp4", "--model", folder / "bundle", "--json")
    assert done.code == 1
    bad, good = done.json["pairs"]
    assert bad["error"].startswith("not_video: ")
    assert (bad["similarity"], bad["segments"]) == (None, None)
    assert 0 <= good["probability"] <= 1
    assert [row["precision"] for row in done.json["thresholds"]] == [0.5, 0.8, 0.9, 0.95, 0.99]


def test_score_without_a_model_says_what_to_do(call: Call, folder: Path) -> None:
    """A folder that is no bundle, and an empty registry."""
    done = call("score", folder / "a.mp4", folder / "b.mp4", "--model", folder)
    assert done.code == 1
    assert "is no model bundle" in done.error
    done = call("score", "a.mp4", "b.mp4", "--tracking-uri", f"sqlite:///{folder / 'empty.db'}")
    assert done.code == 1
    assert "`make demo` registers a model" in done.error
    assert not (folder / "empty.db").exists()
