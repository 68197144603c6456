"""Load the scorer of a bundle: the model's networks in one folder; no pickle, no hub, no data root."""

from __future__ import annotations

from pathlib import Path

from hapvr.errors import FULL_HINT, MissingPartError, is_installed, on_processor
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.description import Description, ONNXRecord, read_calibration, read_description
from hapvr.scorer.onnx_networks import ONNXNetworks
from hapvr.scorer.scorer import Networks, VideoScorer
from hapvr.settings import ScoresDtype


def load_bundle(folder: Path, *, device: str = "cpu", dtype: ScoresDtype = "float32") -> VideoScorer:
    """The scorer of a bundle, with its limits as the environment changes them.

    device: auto: a GPU where there is one. A GPU runs the networks in torch, a processor runs the bundle's ONNX files, and
    torch only for a bundle without any. dtype: of embeddings and comparisons; bfloat16 is for torch. Raises DataError
    naming what is missing or damaged, ConfigError for a wrong limit, and MissingPartError where the bundle needs torch and
    torch is not installed.
    """
    description = read_description(folder)
    return VideoScorer(
        _networks(folder, description, device=device, dtype=dtype),
        description,
        calibration=read_calibration(folder),
        limits=limits_from_environment(description.serving),
    )


def _networks(folder: Path, description: Description, *, device: str, dtype: ScoresDtype) -> Networks:
    onnx = description.onnx
    if isinstance(onnx, ONNXRecord) and on_processor(device) and dtype == "float32":
        return ONNXNetworks(folder, onnx, precision=description.backbone.precision)
    if not is_installed("torch"):
        lack = "compares videos in bfloat16" if isinstance(onnx, ONNXRecord) else f"has no ONNX files ({onnx.reason})"
        raise MissingPartError(f"model: {folder} {lack}, and torch, which that needs, is not installed; {FULL_HINT}")
    from hapvr.scorer.torch_bundle import load_networks

    return load_networks(folder, description, device=device, dtype=dtype)
