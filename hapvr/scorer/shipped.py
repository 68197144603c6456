"""How sure answers of the packaged copy networks are: fitted once, on public clips, and shipped
with the code, since those networks never change. `bench/calibration.py` fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

from hapvr.files import read_json_as
from hapvr.networks.settings import BackboneConfig
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel

FITTED_CROP_PX = 288
"""Side of the pictures used for fitting; similarities at another size have an unknown scale."""
FOLDER = "calibrations"


@dataclass(frozen=True, kw_only=True)
class ShippedCalibration:
    """A file of FOLDER."""

    evidence: EvidenceModel
    """of a search's candidates"""
    calibration: Calibration
    """of the similarity of two files"""


def shipped_calibration(config: BackboneConfig) -> ShippedCalibration | None:
    """The calibration that ships with a network of this configuration; None where there is none."""
    if config.weights.source != "packaged" or config.crop_px != FITTED_CROP_PX:
        return None
    resource = files("hapvr.scorer") / FOLDER / f"{config.architecture}.json"
    if not resource.is_file():
        return None
    with as_file(resource) as path:
        return read_json_as(path, ShippedCalibration, hint="install hapvr again")
