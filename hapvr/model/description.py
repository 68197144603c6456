"""What a stored network says of itself, read without torch: settings, dimensions, and a digest of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError

from hapvr.errors import ArgumentError, DataError
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, family_of
from hapvr.model.tca.settings import TcaSettings
from hapvr.model.vvs.settings import VvsSettings
from hapvr.provenance import safetensors_sha256
from hapvr.settings import explain

WEIGHTS_FILE = "network.safetensors"
DESCRIPTION_FILE = "network.json"
FORMAT_VERSION = 1

FAMILIES: Mapping[str, type[NetworkSettings] | type[TcaSettings] | type[VvsSettings]] = {
    "similarity": NetworkSettings,
    "tca": TcaSettings,
    "vvs": VvsSettings,
}
"""The settings of each family."""


@dataclass(frozen=True, kw_only=True)
class NetworkDescription:
    """dims: D, values per region. side_dims: C of pooled vectors; None where the family has none. metadata: values of JSON."""

    settings: AnyNetworkSettings
    dims: int
    side_dims: int | None
    metadata: dict[str, Any]

    def scoring_settings(self) -> dict[str, Any]:
        """As `VideoNetwork.scoring_settings`."""
        side = {} if self.side_dims is None else {"side_dims": self.side_dims}
        return {"dims": self.dims, **side, **self.settings.scoring()}


def read_settings(values: Mapping[str, Any]) -> AnyNetworkSettings:
    """The settings of the family that the values name; the similarity network's where they name none.

    Raises ArgumentError for an unknown family, pydantic's ValidationError for what the family does not take.
    """
    family = family_of(values)
    if family not in FAMILIES:
        raise ArgumentError(
            f"family: got {family!r}, and this version knows {', '.join(FAMILIES)}; install the version that made it"
        )
    return FAMILIES[family].model_validate(dict(values))


def read_description(folder: Path) -> NetworkDescription:
    """What network.json of a folder says. Raises DataError, which names the file, if it or the weights are missing or it is
    damaged or of another version."""
    description_file = folder / DESCRIPTION_FILE
    for file in (description_file, folder / WEIGHTS_FILE):
        if not file.is_file():
            raise DataError(f"network: {file} is missing; wanted a folder that save_network wrote")
    try:
        description = json.loads(description_file.read_text(encoding="utf-8"))
        version, settings = description["format_version"], description["settings"]
        metadata: dict[str, Any] = description["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"network: {description_file} is not a network description: {error!r}") from error
    if version != FORMAT_VERSION:
        raise DataError(f"network: {description_file} has format {version}, this version reads {FORMAT_VERSION}")
    try:
        dims, side_dims = settings.pop("dims"), settings.pop("side_dims", None)
        return NetworkDescription(settings=read_settings(settings), dims=dims, side_dims=side_dims, metadata=metadata)
    except ValidationError as error:
        raise DataError(f"network: {description_file}: settings do not fit this version: {explain(error)}") from error
    except (AttributeError, KeyError, TypeError, ArgumentError) as error:
        raise DataError(f"network: {description_file}: settings do not fit this version: {error!r}") from error


def weights_sha256(folder: Path) -> str:
    """Digest of the stored weights, as `hapvr.features.weights.state_sha256` gives it. Raises DataError for a damaged file."""
    file = folder / WEIGHTS_FILE
    try:
        return safetensors_sha256(file.read_bytes())
    except (OSError, SafetensorError) as error:
        raise DataError(f"network: {file} is damaged: {error}; copy or train it again") from error
