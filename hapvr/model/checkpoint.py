"""Networks as files: weights in safetensors, and settings and metadata in JSON, which are read
without torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hapvr.errors import ArgumentError, DamagedError
from hapvr.files import (
    arrays_sha256,
    read_bytes,
    read_json_as,
    require_regular,
    write_atomic,
    write_text,
)
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, TcaSettings
from hapvr.seeding import seeded, torch_rng

if TYPE_CHECKING:
    from torch import Tensor

    from hapvr.model.family import VideoNetwork

WEIGHTS_FILE = "network.safetensors"
DESCRIPTION_FILE = "network.json"
HINT = "copy or train the network again"
MAX_MISMATCHES = 10


class NetworkDescription(BaseModel):
    """DESCRIPTION_FILE. dims: D, values per region. extras_dims: C of pooled vectors, 0 where the
    family reads none. metadata: values of JSON."""

    model_config = ConfigDict(frozen=True)

    dims: Annotated[int, Field(ge=1, lt=2**31)]
    extras_dims: Annotated[int, Field(ge=0, lt=2**31)] = 0
    settings: AnyNetworkSettings
    metadata: dict[str, Any]


def read_description(folder: Path) -> NetworkDescription:
    """The content of a folder's network.json. Raises DamagedError if it is missing or damaged."""
    return read_json_as(folder / DESCRIPTION_FILE, NetworkDescription, hint=HINT)


def scoring_settings(network: VideoNetwork | NetworkDescription) -> dict[str, Any]:
    """Everything besides the weights that determines a score, as JSON values."""
    return {
        "dims": network.dims,
        "extras_dims": network.extras_dims,
        **network.settings.model_dump(mode="json"),
    }


def weights_sha256(folder: Path) -> str:
    """Digest of the stored weights, as `hapvr.networks.weights.state_sha256` gives it. Raises
    DamagedError."""
    from safetensors import SafetensorError  # which scoring does without
    from safetensors.numpy import load

    file = folder / WEIGHTS_FILE
    try:
        return arrays_sha256(load(read_bytes(file)))
    # KeyError: of a type that numpy lacks
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise DamagedError(f"network: {file} is damaged: {error}; {HINT}") from error


def build_network(
    settings: AnyNetworkSettings, *, dims: int, extras_dims: int = 0, seed: int = 0
) -> VideoNetwork:
    """A new network of the settings' family; equal seeds give equal weights. dims: D, values per
    region; extras_dims: C of pooled vectors, 0 if features have none. torch's global generator
    keeps its state. Raises ArgumentError where the settings do not fit the dims."""
    import torch

    generator = torch_rng(seed, "network")
    # A search loads only the code of its own family.
    if isinstance(settings, NetworkSettings):
        from hapvr.model.network import SimilarityNetwork

        return SimilarityNetwork(settings, dims=dims, generator=generator)

    with seeded(int(torch.randint(2**62, (), generator=generator, device="cpu"))):
        if isinstance(settings, TcaSettings):
            from hapvr.model.tca import ContextNetwork

            return ContextNetwork(settings, dims=dims)

        from hapvr.model.vvs import VvsNetwork

        return VvsNetwork(settings, dims=dims, extras_dims=extras_dims)


def save_network(network: VideoNetwork, folder: Path, *, metadata: Mapping[str, Any]) -> Path:
    """Write weights and description into the folder, made if missing; returns it. metadata: values
    of JSON. The description is written last, so a folder that has one is complete."""
    from safetensors.torch import save_file

    description = NetworkDescription(
        dims=network.dims,
        extras_dims=network.extras_dims,
        settings=network.settings,
        metadata=dict(metadata),
    )
    weights = {
        name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()
    }
    with write_atomic(folder / WEIGHTS_FILE) as part:
        save_file(weights, part)
    write_text(folder / DESCRIPTION_FILE, description.model_dump_json(indent=2) + "\n")
    return folder


def load_network(folder: Path) -> tuple[VideoNetwork, dict[str, Any]]:
    """The network, of any family, on the CPU and in evaluation mode, and its metadata. Raises
    DamagedError, which names the file, if a file is missing or damaged or the weights do not fit
    the settings."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    description = read_description(folder)
    weights_file = folder / WEIGHTS_FILE
    build = partial(
        build_network,
        description.settings,
        dims=description.dims,
        extras_dims=description.extras_dims,
    )
    try:
        # only shapes: settings that the weights do not fit take no memory
        with torch.device("meta"):
            wanted = build().state_dict()
        require_regular(weights_file)
        weights = load_file(weights_file)
        problems = describe_mismatches(wanted, weights)
    except (RuntimeError, ArgumentError, OSError, SafetensorError) as error:
        problems = [f"{error!r:.200}"]

    if problems:
        raise DamagedError(
            f"network: {weights_file} is damaged or does not fit {DESCRIPTION_FILE}: "
            f"{'; '.join(problems[:MAX_MISMATCHES])}; {HINT}"
        )

    network = build()
    network.load_state_dict(weights)
    return network.eval(), description.metadata


def describe_mismatches(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """One line for each tensor that is missing, unknown, of another shape or dtype, or not finite,
    and one for weights that are all alike; empty if everything fits."""
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is unknown" for name in found if name not in wanted]
    for name, tensor in found.items():
        if name not in wanted:
            continue
        if tensor.shape != wanted[name].shape:
            lines.append(
                f"{name} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}"
            )
        elif tensor.dtype != wanted[name].dtype:
            lines.append(f"{name} has values of {tensor.dtype}, expected {wanted[name].dtype}")
        elif not bool(tensor.isfinite().all()):
            lines.append(f"{name} has NaN or infinite values")

    if not lines and _is_constant(found):
        lines.append("every tensor has one value alone, so all videos would be alike")
    return lines


def _is_constant(tensors: Mapping[str, Tensor]) -> bool:
    """Whether each tensor that mixes features, with two dimensions or more, holds a single
    value."""
    mixing = [values for values in tensors.values() if values.ndim >= 2 and values.numel() > 1]
    if not mixing:
        return False
    return all(bool((values == values.flatten()[0]).all()) for values in mixing)
