"""The similarity network of a model, and which stored features it may be given. Imports torch only to load a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from hapvr.data.features import without_extras
from hapvr.errors import DamagedError, DataError
from hapvr.model.description import DESCRIPTION_FILE
from hapvr.provenance import Provenance, safetensors_sha256
from hapvr.scorer.calibration import Calibration, frame_threshold
from hapvr.scorer.description import (
    HINT,
    NETWORK_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
    read_calibration,
    read_description,
)

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork

WHITENING_TENSORS = ("mean", "eigenvectors", "eigenvalues")
"""Those that `Whitening.sha256` is of."""


@dataclass(frozen=True)
class BundleFeatures:
    """place: of the model. settings: of the features that it goes with, None where the model does not say."""

    place: Path
    settings: Mapping[str, Any] | None = None

    def require(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming what differs, where features were made by another backbone, crop, whitening or sampling.

        settings: of the stored features. Features and models that came from outside do not say, and pass; the number
        of dimensions is checked when they are scored.
        """
        if self.settings is None or "imported" in settings:
            return
        differences = Provenance("features", self.settings).differences(
            Provenance("features", without_extras(settings))
        )
        if differences:
            raise DataError(
                f"model: {self.place} does not go with these features: {'; '.join(differences)}. Extract features with the "
                "model's settings, or take the model that was trained on these"
            )


def bundle_features(place: Path) -> BundleFeatures:
    """What the features of a bundle are made with. Raises DataError as `read_description` does, and for no whitening."""
    description = read_description(place)
    try:
        whitening = safetensors_sha256((place / WHITENING_FILE).read_bytes(), names=WHITENING_TENSORS)
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"model: {place / WHITENING_FILE} is missing or damaged ({error}); {HINT}") from error
    settings = {
        "sampling": description.sampling.identity_fields(),
        "backbone": description.backbone.model_dump(exclude_defaults=True),
        "crop_px": description.crop_px,
        "whitening": whitening,
    }
    return BundleFeatures(place, settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityModel:
    """features: that it goes with. calibration: None where the model has none."""

    network: VideoNetwork
    features: BundleFeatures
    calibration: Calibration | None = None

    @property
    def frame_threshold(self) -> float:
        """Relative frame similarity from which on two frames count as the same in segments."""
        return frame_threshold(self.calibration)

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError as `BundleFeatures.require` does. settings: of the stored features."""
        self.features.require(settings)


def load_similarity_model(place: Path) -> SimilarityModel:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or of a published .pth.

    Raises DataError saying which of these were looked for.
    """
    from hapvr.model.checkpoint import load_network
    from hapvr.model.released import import_released

    if place.is_file():
        return SimilarityModel(network=import_released(place)[0], features=BundleFeatures(place))
    if (place / DESCRIPTION_FILE).is_file():
        return SimilarityModel(network=load_network(place)[0], features=BundleFeatures(place))
    if not (place / SCORER_FILE).exists():
        raise DataError(
            f"model: {place} is not a model; wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        )
    features = bundle_features(place)
    return SimilarityModel(
        network=load_network(place / NETWORK_FOLDER)[0],
        features=features,
        calibration=read_calibration(place),
    )
