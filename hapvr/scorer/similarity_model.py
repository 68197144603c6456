"""The similarity network of a model, and which stored features it may be given. Imports torch only to load a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hapvr.errors import DataError
from hapvr.model.description import DESCRIPTION_FILE
from hapvr.scorer.description import NETWORK_FOLDER, SCORER_FILE, Description, read_description

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork


@dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityModel:
    """place: of the model. description: None where it is no bundle."""

    place: Path
    network: VideoNetwork
    description: Description | None = None

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError as `Description.require_features` does; models that came from outside do not say, and pass."""
        if self.description is not None:
            self.description.require_features(self.place, settings)


def load_similarity_model(place: Path) -> SimilarityModel:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or of a published .pth.

    Raises DataError saying which of these were looked for.
    """
    from hapvr.model.checkpoint import load_network
    from hapvr.model.published import import_released

    if place.is_file():
        return SimilarityModel(place=place, network=import_released(place)[0])
    if (place / DESCRIPTION_FILE).is_file():
        return SimilarityModel(place=place, network=load_network(place)[0])
    if not (place / SCORER_FILE).exists():
        raise DataError(
            f"model: {place} is not a model; wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        )
    description = read_description(place)
    description.require_files(place)
    return SimilarityModel(place=place, network=load_network(place / NETWORK_FOLDER)[0], description=description)
