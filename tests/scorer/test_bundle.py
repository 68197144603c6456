"""Bundles: what they are read as, and what is said of damaged ones."""

import json
import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hapvr.errors import DamagedError, DataError
from hapvr.scorer.bundle import load_bundle, load_similarity_model
from hapvr.scorer.bundle_writer import random_weights_warning
from hapvr.scorer.description import FORMAT_VERSION
from hapvr.scorer.scorer import VideoScorer


def change(bundle: Path, copy: Path, **values: object) -> Path:
    """A copy of a bundle with other values in scorer.json."""
    shutil.copytree(bundle, copy)
    description = json.loads((copy / "scorer.json").read_text()) | values
    (copy / "scorer.json").write_text(json.dumps(description))
    return copy


def test_a_model_of_random_weights_says_so_with_every_answer(
    scorer: VideoScorer, scenes: Path
) -> None:
    """The warning stands in every row."""
    assert "random weights" in scorer.warning
    (row, wrong) = scorer.score_pairs(
        [(scenes / "a.mp4", scenes / "b.mp4"), (scenes / "a.mp4", scenes / "bad.mp4")]
    )
    assert row.warning == wrong.warning == scorer.warning
    assert random_weights_warning(["pretrained", "file"]) == ""
    assert "random weights" in random_weights_warning(["pretrained", "random"])


def test_damaged_values_name_the_file(bundle: Path, tmp_path: Path) -> None:
    """Whatever stands in scorer.json: unknown keys, wrong values, no JSON, a device that never
    ends."""
    good = json.loads((bundle / "scorer.json").read_text())
    wrong = [
        {"sampling": good["sampling"] | {"zoom": 2}},
        {"backbone": good["backbone"] | {"precision": "float8"}},
        *(
            {name: value}
            for name in ("crop_px", "sampling", "serving", "backbone", "onnx")
            for value in ([], "x", -1, math.inf, math.nan, [[1]])
        ),
    ]
    for values in wrong:
        (tmp_path / "scorer.json").write_text(json.dumps(good | values))
        with pytest.raises(DataError, match=r"scorer\.json is damaged.*fetch the model again"):
            load_bundle(tmp_path)

    (tmp_path / "scorer.json").unlink()
    with pytest.raises(DataError, match=r"is not a model"):
        load_bundle(tmp_path)
    (tmp_path / "scorer.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="regular file"):
        load_bundle(tmp_path)


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (FORMAT_VERSION + 1, "update hapvr, which is older than the model"),
        (FORMAT_VERSION - 1, "register or fetch the model again"),
    ],
    ids=["newer", "older"],
)
def test_a_bundle_of_another_format_is_not_called_damaged(
    found: int, advice: str, bundle: Path, tmp_path: Path
) -> None:
    """It may also have other keys."""
    good = json.loads((bundle / "scorer.json").read_text())
    values = good | {"format_version": found, "a key of later": 1}
    (tmp_path / "scorer.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=f"is of format {found}, .*{advice}") as caught:
        load_bundle(tmp_path)
    assert not isinstance(caught.value, DamagedError)


def test_every_file_is_the_recorded_one(bundle: Path, tmp_path: Path) -> None:
    """A flipped bit of any file, and a file that is gone."""
    folder = change(bundle, tmp_path / "bundle")
    names = json.loads((folder / "scorer.json").read_text())["files"]
    assert {"network/network.safetensors", "network/network.json", "backbone.safetensors"} < set(
        names
    )
    for name in names:
        path = folder / name
        whole = (folder / name).read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        for load in (load_bundle, load_similarity_model):
            with pytest.raises(
                DamagedError,
                match=rf"{name} is missing or differs from what scorer\.json says; copy",
            ):
                load(folder)

        path.write_bytes(whole)

    path.unlink()
    with pytest.raises(DamagedError, match=r"is missing or differs"):
        load_bundle(folder)


@pytest.mark.slow
def test_parts_that_do_not_go_together_are_named(bundle: Path, tmp_path: Path) -> None:
    """A calibration that is no JSON, other weights, whitening of other shapes, of no numbers, of
    other dimensions: bundles whose author did not record digests."""
    broken = change(bundle, tmp_path / "broken", files={})
    (broken / "calibration.json").write_text("{")
    with pytest.raises(DataError, match=r"calibration\.json is damaged"):
        load_bundle(broken)
    backbone = json.loads((bundle / "scorer.json").read_text())["backbone"]
    mismatched_bundle = change(
        bundle, tmp_path / "weights", backbone=backbone | {"sha256": "0" * 64}
    )
    with pytest.raises(DataError, match=r"the backbone of .* has SHA-256"):
        load_bundle(mismatched_bundle)
    folder = change(bundle, tmp_path / "whitening", files={})
    whole = load_file(folder / "whitening.safetensors")
    others = (
        whole | {"mean": whole["mean"][1:]},
        whole | {"eigenvalues": whole["eigenvalues"] * math.nan},
        whole | {"eps": whole["mean"].clone()},
        whole
        | {
            "eigenvectors": whole["eigenvectors"][:, 1:].contiguous(),
            "eigenvalues": whole["eigenvalues"][1:],
        },
    )
    for tensors in others:
        save_file(tensors, folder / "whitening.safetensors")
        with pytest.raises(DataError, match=r"whitening.*fetch the model again"):
            load_bundle(folder)
