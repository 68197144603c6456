"""The similarity network of a model, and the features that it may be given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hapvr.errors import DataError
from hapvr.model.checkpoint import load_network
from hapvr.model.description import DESCRIPTION_FILE
from hapvr.model.family import VideoNetwork
from hapvr.model.released import import_released
from hapvr.scorer.bundle_features import BundleFeatures, bundle_features
from hapvr.scorer.calibration import Calibration, frame_threshold
from hapvr.scorer.description import NETWORK_FOLDER, SCORER_FILE, read_calibration


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
        return frame_threshold(self.calibration)

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError as `BundleFeatures.require` does. settings: of the stored features."""
        BundleFeatures(place=self.place, settings=self.feature_settings).require(settings)


def load_similarity_model(place: Path) -> SimilarityModel:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or of a published .pth.

    Raises DataError saying which of these were looked for.
    """
    if place.is_file():
        return SimilarityModel(network=import_released(place)[0], place=place, feature_settings=None)
    if (place / DESCRIPTION_FILE).is_file():
        return SimilarityModel(network=load_network(place)[0], place=place, feature_settings=None)
    if not (place / SCORER_FILE).exists():
        raise DataError(
            f"model: {place} is no model; wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        )
    features = bundle_features(place)
    return SimilarityModel(
        network=load_network(place / NETWORK_FOLDER)[0],
        place=place,
        feature_settings=features.settings,
        calibration=read_calibration(place),
    )
