"""Bundles of this format, of the one before, and of others."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hapvr.errors import DataError
from hapvr.scorer.bundle import load_bundle, random_weights_warning
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.similarity_model import load_similarity_model


def change(bundle: Path, copy: Path, **values: object) -> Path:
    """A copy of a bundle with other values in scorer.json; None takes a key out."""
    shutil.copytree(bundle, copy)
    description = json.loads((copy / "scorer.json").read_text()) | values
    (copy / "scorer.json").write_text(
        json.dumps({key: value for key, value in description.items() if value is not None})
    )
    return copy


def test_format_1_is_read(bundle: Path, scenes: Path, tmp_path: Path) -> None:
    """A bundle without limits, calibration and version scores the same, without probability."""
    old = change(bundle, tmp_path / "old", format_version=1, serving=None, hapvr_version=None)
    pair = [(scenes / "a.mp4", scenes / "b.mp4")]
    (row,) = load_bundle(old).score_pairs(pair)
    assert row == load_bundle(bundle).score_pairs(pair)[0]
    assert row.probability is None


@pytest.mark.parametrize("load", [load_bundle, load_similarity_model])
def test_other_formats_say_who_made_them_and_what_to_do(bundle: Path, tmp_path: Path, load: object) -> None:
    """A format that is not known: the version that wrote it, this one's formats, and three ways out."""
    newer = change(bundle, tmp_path / "newer", format_version=9, hapvr_version="7.1.0")
    with pytest.raises(DataError, match=r"format 9, made by HAP-VR 7\.1\.0.*reads 1, 2.*register the model again"):
        load(newer)  # type: ignore[operator]


def test_settings_of_another_version_are_refused(bundle: Path, tmp_path: Path) -> None:
    """A sampling key that this version does not know names the key and the version that made it."""
    description = json.loads((bundle / "scorer.json").read_text())
    other = change(bundle, tmp_path / "other", sampling=description["sampling"] | {"zoom": 2}, hapvr_version="7.1.0")
    with pytest.raises(DataError, match=r"(?s)zoom.*made by 7\.1\.0"):
        load_bundle(other)


def test_a_bundle_extracts_in_its_precision(bundle: Path, scenes: Path, tmp_path: Path) -> None:
    """Other regions than in float32, and close ones; a precision that this version does not know is refused."""
    backbone = json.loads((bundle / "scorer.json").read_text())["backbone"]
    assert "precision" not in backbone
    half = change(bundle, tmp_path / "half", backbone=backbone | {"precision": "bfloat16"})
    exact, close = (load_bundle(folder).features(scenes / "a.mp4") for folder in (bundle, half))
    assert close.dtype == exact.dtype
    assert not np.array_equal(close, exact)
    assert np.sum(close * exact, axis=-1).min() > 0.99
    other = change(bundle, tmp_path / "other", backbone=backbone | {"precision": "float8"}, hapvr_version="7.1.0")
    with pytest.raises(DataError, match=r"(?s)precision.*float8.*made by 7\.1\.0"):
        load_bundle(other)


def test_damaged_parts_are_named(bundle: Path, tmp_path: Path) -> None:
    """No scorer.json, a calibration that is no JSON, other backbone weights."""
    with pytest.raises(DataError, match="no model bundle"):
        load_bundle(tmp_path)
    broken = change(bundle, tmp_path / "broken")
    (broken / "calibration.json").write_text("{")
    with pytest.raises(DataError, match=r"calibration\.json is damaged"):
        load_bundle(broken)
    backbone = json.loads((bundle / "scorer.json").read_text())["backbone"]
    other = change(bundle, tmp_path / "weights", backbone=backbone | {"sha256": "0" * 64})
    with pytest.raises(DataError, match=r"backbone\.safetensors differs"):
        load_bundle(other)


def test_a_model_of_random_weights_says_so_with_every_answer(bundle: Path, scorer: VideoScorer, scenes: Path) -> None:
    """The warning stands in every row, of old bundles too, whose description has none; another one is kept as it is."""
    assert "random weights" in scorer.warning
    (row, wrong) = scorer.score_pairs([(scenes / "a.mp4", scenes / "b.mp4"), (scenes / "a.mp4", scenes / "bad.mp4")])
    assert row.warning == wrong.warning == scorer.warning
    assert random_weights_warning(["pretrained", "file"]) == ""
    assert "random weights" in random_weights_warning(["pretrained", "random"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("crop_px", "batch_frames", "sampling", "serving", "backbone")
        for value in ([], {}, "x", -1, 10**30, math.inf, math.nan, [[1]])
        if (name, value) not in (("serving", {}), ("sampling", {}), ("batch_frames", 10**30))  # which are allowed
    ],
    ids=repr,
)
def test_damaged_values_name_the_file(bundle: Path, tmp_path: Path, name: str, value: object) -> None:
    """Whatever stands in scorer.json."""
    (tmp_path / "scorer.json").write_text(json.dumps(json.loads((bundle / "scorer.json").read_text()) | {name: value}))
    with pytest.raises(DataError, match=r"scorer\.json cannot be used.*register the model again"):
        load_bundle(tmp_path)


def test_a_description_that_never_ends_is_no_file(tmp_path: Path) -> None:
    """A link to a device would fill the memory."""
    (tmp_path / "scorer.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="no regular file"):
        load_bundle(tmp_path)


def test_parts_that_do_not_go_together_are_named(bundle: Path, tmp_path: Path) -> None:
    """Whitening of other shapes, of no numbers, and of other dimensions than the network's."""
    folder = change(bundle, tmp_path / "whitening")
    whole = load_file(folder / "whitening.safetensors")
    others = (
        whole | {"mean": whole["mean"][1:]},
        whole | {"eigenvalues": whole["eigenvalues"] * math.nan},
        whole | {"eps": whole["mean"].clone()},
        whole | {"eigenvectors": whole["eigenvectors"][:, 1:].contiguous(), "eigenvalues": whole["eigenvalues"][1:]},
    )
    for tensors in others:
        save_file(tensors, folder / "whitening.safetensors")
        with pytest.raises(DataError, match=r"whitening\.safetensors .*fetch the model again"):
            load_bundle(folder)
