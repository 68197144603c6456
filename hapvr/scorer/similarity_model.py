"""The similarity network of a model, and the features that it may be given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hapvr.errors import DataError
from hapvr.features.whitening import whitening_from_bytes
from hapvr.model.checkpoint import DESCRIPTION_FILE, load_network
from hapvr.model.family import VideoNetwork
from hapvr.model.released import import_released
from hapvr.provenance import Provenance
from hapvr.scorer.bundle import NETWORK_FOLDER, SCORER_FILE, WHITENING_FILE, read_calibration, read_description
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.segments import DEFAULT_THRESHOLD
from hapvr.storage.side import without_side
from hapvr.video.settings import SamplingConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityModel:
    """place: where it was read; feature_settings: of the features it goes with, None where the model does not say.

    calibration: None where the model has none.
    """

    network: VideoNetwork
    place: Path
    feature_settings: Mapping[str, Any] | None
    calibration: Calibration | None = None

    @property
    def frame_threshold(self) -> float:
        """Relative frame similarity from which on two frames count as the same in segments."""
        known = None if self.calibration is None else self.calibration.frame_threshold
        return DEFAULT_THRESHOLD if known is None else known

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming what differs, where features were made by another backbone, crop, whitening or sampling.

        settings: of the stored features. Features and models that came from outside do not say, and pass; the number
        of dimensions is checked when they are scored.
        """
        if self.feature_settings is None or "imported" in settings:
            return
        differences = Provenance("features", self.feature_settings).differences(
            Provenance("features", without_side(settings))
        )
        if differences:
            raise DataError(
                f"model: {self.place} does not go with these features: {'; '.join(differences)}. Extract features with the "
                "model's settings, or take the model that was trained on these"
            )


def load_similarity_model(place: Path) -> SimilarityModel:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or of a published .pth.

    Raises DataError saying which of these were looked for.
    """
    if place.is_file():
        return SimilarityModel(network=import_released(place)[0], place=place, feature_settings=None)
    if (place / DESCRIPTION_FILE).is_file():
        return SimilarityModel(network=load_network(place)[0], place=place, feature_settings=None)
    if (place / SCORER_FILE).is_file():
        read_description(place)
    try:
        description = json.loads((place / SCORER_FILE).read_text(encoding="utf-8"))
        whitening = whitening_from_bytes((place / WHITENING_FILE).read_bytes())
        settings = {
            "sampling": SamplingConfig.model_validate(description["sampling"]).content(),
            "backbone": description["backbone"],
            "crop_px": description["crop_px"],
            "whitening": whitening.sha256,
        }
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(
            f"model: {place} is no model ({error}); wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        ) from error
    return SimilarityModel(
        network=load_network(place / NETWORK_FOLDER)[0],
        place=place,
        feature_settings=settings,
        calibration=read_calibration(place),
    )
