"""Which stored features the model of a bundle may be given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError

from hapvr.errors import DataError
from hapvr.model.description import DESCRIPTION_FILE
from hapvr.provenance import Provenance, safetensors_sha256
from hapvr.scorer.bundle import SCORER_FILE, WHITENING_FILE, read_description
from hapvr.settings import explain
from hapvr.storage.side import without_side
from hapvr.video.settings import SamplingConfig

WHITENING_TENSORS = ("mean", "eigenvectors", "eigenvalues")
"""Those that `Whitening.sha256` is of."""


@dataclass(frozen=True, kw_only=True)
class BundleFeatures:
    """place: of the bundle. settings: of the features that it goes with, None where the model does not say."""

    place: Path
    settings: Mapping[str, Any] | None

    def require(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming what differs, where features were made by another backbone, crop, whitening or sampling.

        settings: of the stored features. Features and models that came from outside do not say, and pass; the number
        of dimensions is checked when they are scored.
        """
        if self.settings is None or "imported" in settings:
            return
        differences = Provenance("features", self.settings).differences(Provenance("features", without_side(settings)))
        if differences:
            raise DataError(
                f"model: {self.place} does not go with these features: {'; '.join(differences)}. Extract features with the "
                "model's settings, or take the model that was trained on these"
            )


def bundle_features(place: Path) -> BundleFeatures:
    """What the features of a bundle are made with. Raises DataError for a folder that is none, saying what is wanted."""
    if (place / SCORER_FILE).is_file():
        read_description(place)
    try:
        description = json.loads((place / SCORER_FILE).read_text(encoding="utf-8"))
        settings = {
            "sampling": SamplingConfig.model_validate(description["sampling"]).content(),
            "backbone": description["backbone"],
            "crop_px": description["crop_px"],
            "whitening": safetensors_sha256((place / WHITENING_FILE).read_bytes(), names=WHITENING_TENSORS),
        }
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else error
        raise DataError(
            f"model: {place} is no model ({reason}); wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        ) from error
    return BundleFeatures(place=place, settings=settings)
