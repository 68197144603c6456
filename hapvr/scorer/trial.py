"""A trial of bundles that come from elsewhere."""

from pathlib import Path

import numpy as np

from hapvr.errors import DataError
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.onnx_networks import ONNX_FOLDER
from hapvr.video.frames import encode_jpeg
from hapvr.workers import call_limited

TRIAL_MEMORY_BYTES = 16 << 30
TRIAL_TIMEOUT_S = 120.0


def try_bundle(folder: Path) -> None:
    """Compare a picture with itself by the ONNX files of a bundle from elsewhere, in a process with
    limits: OpenVINO may crash, or never end, on a network of allowed operations. Raises DataError.
    """
    if not (folder / ONNX_FOLDER).is_dir():
        return
    try:
        call_limited(_try, folder, memory_bytes=TRIAL_MEMORY_BYTES, timeout_s=TRIAL_TIMEOUT_S)
    except ValueError as error:
        raise DataError(
            f"model: a trial of {folder} failed: {error}; use a model from a source that you trust"
        ) from error


def _try(folder: Path) -> None:
    scorer = load_bundle(folder)
    picture = encode_jpeg(np.zeros((256, 256, 3), np.uint8))
    video = scorer.embed(scorer.sampled([picture] * 4))
    scorer.similarity(video, video)
