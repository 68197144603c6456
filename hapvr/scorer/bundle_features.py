"""Which stored features the model of a bundle may be given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hapvr.errors import DamagedError, DataError
from hapvr.provenance import Provenance, safetensors_sha256
from hapvr.scorer.description import REMEDY, WHITENING_FILE, read_description
from hapvr.storage.side import without_side

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
    """What the features of a bundle are made with. Raises DataError as `read_description` does, and for no whitening."""
    description = read_description(place)
    try:
        whitening = safetensors_sha256((place / WHITENING_FILE).read_bytes(), names=WHITENING_TENSORS)
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"model: {place / WHITENING_FILE} is missing or damaged ({error}); {REMEDY}") from error
    settings = {
        "sampling": description.sampling.content(),
        "backbone": description.backbone.model_dump(exclude_defaults=True),
        "crop_px": description.crop_px,
        "whitening": whitening,
    }
    return BundleFeatures(place=place, settings=settings)
