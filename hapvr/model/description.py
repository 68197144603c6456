"""What a stored network says of itself, read without torch: settings, dimensions, and a digest of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError

from hapvr.errors import ArgumentError, DataError
from hapvr.files import read_json_as
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


class _Settings(BaseModel, extra="allow"):
    """Besides the settings of the family."""

    dims: Annotated[int, Field(ge=1, lt=2**31)]
    side_dims: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class _Stored(BaseModel):
    """DESCRIPTION_FILE."""

    format_version: int
    settings: _Settings
    metadata: dict[str, Any]


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
    stored = read_json_as(description_file, _Stored, remedy="copy or train the network again")
    if stored.format_version != FORMAT_VERSION:
        raise DataError(
            f"network: {description_file} has format {stored.format_version}, this version reads {FORMAT_VERSION}"
        )
    values = stored.settings.model_extra or {}
    try:
        settings = read_settings(values)
    except (ValidationError, ArgumentError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else error
        raise DataError(f"network: {description_file}: settings do not fit this version: {reason}") from error
    return NetworkDescription(
        settings=settings, dims=stored.settings.dims, side_dims=stored.settings.side_dims, metadata=stored.metadata
    )


def weights_sha256(folder: Path) -> str:
    """Digest of the stored weights, as `hapvr.features.weights.state_sha256` gives it. Raises DataError for a damaged file."""
    file = folder / WEIGHTS_FILE
    try:
        return safetensors_sha256(file.read_bytes())
    except (OSError, SafetensorError) as error:
        raise DataError(f"network: {file} is damaged: {error}; copy or train it again") from error
