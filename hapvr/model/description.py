"""What a stored network says of itself, read without torch: settings, dimensions, and a digest of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hapvr.errors import DamagedError
from hapvr.files import read_json_as, safetensors_sha256
from hapvr.model.settings import AnyNetworkSettings

WEIGHTS_FILE = "network.safetensors"
DESCRIPTION_FILE = "network.json"
HINT = "copy or train the network again"


class NetworkDescription(BaseModel):
    """DESCRIPTION_FILE.

    dims: D, values per region. extras_dims: C of pooled vectors, 0 where the family reads none. metadata: values of JSON.
    """

    model_config = ConfigDict(frozen=True)

    dims: Annotated[int, Field(ge=1, lt=2**31)]
    extras_dims: Annotated[int, Field(ge=0, lt=2**31)] = 0
    settings: AnyNetworkSettings
    metadata: dict[str, Any]

    def scoring_settings(self) -> dict[str, Any]:
        """As `VideoNetwork.scoring_settings`."""
        return {"dims": self.dims, "extras_dims": self.extras_dims, **self.settings.model_dump(mode="json")}


def read_description(folder: Path) -> NetworkDescription:
    """What network.json of a folder says. Raises DamagedError if it is missing or damaged."""
    return read_json_as(folder / DESCRIPTION_FILE, NetworkDescription, hint=HINT)


def weights_sha256(folder: Path) -> str:
    """Digest of the stored weights, as `hapvr.networks.weights.state_sha256` gives it. Raises DamagedError."""
    from safetensors import SafetensorError  # which scoring does without

    file = folder / WEIGHTS_FILE
    try:
        return safetensors_sha256(file.read_bytes())
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"network: {file} is damaged: {error}; {HINT}") from error
