"""The bundle: sampling, backbone weights, whitening and network in one folder; no pickle, no hub, no data root.

scorer.json               format, sampling, backbone identity and precision, crop, limits, where it came from; written last
calibration.json          similarity to probability; not there where the model has none
model_card.md             data, settings, metrics and limits, for people; may be absent
backbone.safetensors      the frozen weights, so that neither hub nor cache is needed where it is loaded; absent where the
                          backbone is a TorchScript file, which is code: whoever loads the bundle names it by
                          HAPVR_BACKBONE_FILE, and its digest must be the recorded one
whitening.safetensors
network/                  network.safetensors, network.json
onnx/                     the same networks as ONNX files, see `hapvr.scorer.onnx_networks`; absent where scorer.json says why
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from hapvr import __version__
from hapvr.errors import DataError, MissingPartError
from hapvr.files import read_json_as, require_regular
from hapvr.installed import FULL_REMEDY, is_installed
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.networks import Networks
from hapvr.scorer.onnx_networks import ONNXNetworks
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.settings import ScoresDtype, ServingConfig
from hapvr.settings import explain
from hapvr.video.settings import SamplingConfig

Engine = Literal["torch", "onnx"]

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
CALIBRATION_FILE = "calibration.json"
CARD_FILE = "model_card.md"
FORMAT_VERSION = 2
TORCHSCRIPT = "torchscript"
TORCHSCRIPT_VARIABLE = "HAPVR_BACKBONE_FILE"
READ_VERSIONS = (1, 2)
"""Format 1 is format 2 without calibration, model card, limits and the version of this package."""


class _Backbone(BaseModel):
    source: Literal["pretrained", "file", "random", "torchscript"]


class _Stored(BaseModel):
    """What any engine takes from scorer.json."""

    backbone: _Backbone
    crop_px: Annotated[int, Field(ge=1, le=1024)]
    batch_frames: Annotated[int, Field(ge=1)]
    sampling: SamplingConfig
    serving: ServingConfig = ServingConfig()
    warning: str = ""


def read_description(folder: Path) -> dict[str, Any]:
    """What scorer.json says. Raises DataError for a folder without one, or of a format that this version does not read."""
    try:
        require_regular(folder / SCORER_FILE)
        description = json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"model: {folder} is no model bundle ({error}); wanted a folder with {SCORER_FILE}") from error
    if not isinstance(description, dict):
        raise DataError(f"model: {folder / SCORER_FILE} holds no JSON object; fetch the model again")
    version = description.get("format_version")
    if version not in READ_VERSIONS:
        raise DataError(
            f"model: {folder} has format {version!r:.40}, made by HAP-VR {description.get('hapvr_version', 'of another version')!s:.40}; "
            f"this version ({__version__}) reads {', '.join(str(known) for known in READ_VERSIONS)}. Install the version that "
            "made it, register the model again with this one, or load it with mlflow.pyfunc in a process that has not "
            "imported hapvr: a registered model brings its own code"
        )
    return dict(description)


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a bundle, None if it has none. Raises DamagedError for one that cannot be used."""
    path = folder / CALIBRATION_FILE
    return read_json_as(path, Calibration, remedy="fetch or register the model again") if path.exists() else None


def load_bundle(
    folder: Path, *, device: str = "cpu", engine: Engine = "torch", dtype: ScoresDtype = "float32"
) -> VideoScorer:
    """The scorer of a bundle, with its limits as the environment changes them.

    device: of torch; auto: a GPU where there is one. engine: `onnx` takes the bundle's ONNX files where it has any, and torch
    where it has none. Without torch installed it is always `onnx`. dtype: of embeddings and comparisons; bfloat16 is for torch.
    Raises DataError naming what is missing, damaged or of another format, ConfigError for a wrong limit, and
    MissingPartError where the bundle needs torch and torch is not installed.
    """
    description = read_description(folder)
    try:
        stored = _Stored.model_validate(description)
    except ValidationError as error:
        raise unusable_description(folder, description, explain(error)) from error
    return VideoScorer(
        networks=_networks(folder, description, device=device, engine=engine, dtype=dtype),
        sampling=stored.sampling,
        crop_px=stored.crop_px,
        batch_frames=stored.batch_frames,
        description=description,
        calibration=read_calibration(folder),
        limits=limits_from_environment(stored.serving),
        warning=stored.warning or random_weights_warning([stored.backbone.source]),
    )


def _networks(
    folder: Path, description: Mapping[str, Any], *, device: str, engine: Engine, dtype: ScoresDtype
) -> Networks:
    in_half = dtype == "bfloat16"
    record = description.get("onnx")
    record = record if isinstance(record, Mapping) else {"reason": "it was made before there were any"}
    if "files" in record and not in_half and (engine == "onnx" or not is_installed("torch")):
        return ONNXNetworks(folder, record)
    if in_half and not is_installed("torch"):
        raise MissingPartError(
            f"model: {folder} compares videos in bfloat16 by torch alone; {FULL_REMEDY}, or take float32"
        )
    if not is_installed("torch"):
        raise MissingPartError(
            f"model: {folder} has no ONNX files ({record.get('reason', 'no reason is given')}), and without torch nothing else "
            f"can run it; {FULL_REMEDY}, or register the model again with this version"
        )
    from hapvr.scorer.torch_bundle import load_networks

    return load_networks(folder, description, device=device, dtype=dtype)


def unusable_description(folder: Path, description: Mapping[str, Any], error: Exception | str) -> DataError:
    """What a scorer.json with values that this version does not know means."""
    return DataError(
        f"model: {folder / SCORER_FILE} cannot be used by HAP-VR {__version__} ({error}); it was made by "
        f"{description.get('hapvr_version', 'another version')!s:.40}: install that, or register the model again"
    )


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some are random."""
    if "random" not in sources:
        return ""
    return (
        "the frozen networks of this model have random weights: it shows that the chain works, and its similarities and "
        "probabilities say nothing about videos"
    )
