"""Networks as files: weights in safetensors, and settings and metadata in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hapvr.errors import ArgumentError, DamagedError
from hapvr.files import require_regular, write_atomic
from hapvr.model.description import DESCRIPTION_FILE, HINT, WEIGHTS_FILE, NetworkDescription, read_description
from hapvr.model.family import VideoNetwork, seeded
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, TcaSettings

MAX_MISMATCHES = 10


def build_family(
    settings: AnyNetworkSettings, *, dims: int, extras_dims: int = 0, generator: torch.Generator | None = None
) -> VideoNetwork:
    """A new network of the family that the settings are of.

    dims: D, values per region; extras_dims: C of pooled vectors, 0 where features have none. generator: draws the
    weights, which are the same each time without one; torch's global generator is left alone. Raises ArgumentError where the
    settings do not fit the dims.
    """
    # A search loads the code of its own family alone.
    if isinstance(settings, NetworkSettings):
        from hapvr.model.network import SimilarityNetwork

        return SimilarityNetwork(settings, dims=dims, generator=generator)
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    with seeded(seed, torch.device("cpu")):
        if isinstance(settings, TcaSettings):
            from hapvr.model.tca import ContextNetwork

            return ContextNetwork(settings, dims=dims)
        from hapvr.model.vvs import VvsNetwork

        return VvsNetwork(settings, dims=dims, extras_dims=extras_dims)


def save_network(network: VideoNetwork, folder: Path, *, metadata: Mapping[str, Any]) -> Path:
    """Write weights and description into the folder, made if missing; returns it.

    metadata: values of JSON. The description is written last, so a folder that has one is complete.
    """
    description = NetworkDescription(
        dims=network.dims, extras_dims=network.extras_dims, settings=network.settings, metadata=dict(metadata)
    )
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with write_atomic(folder / WEIGHTS_FILE) as part:
        save_file(weights, part)
    with write_atomic(folder / DESCRIPTION_FILE) as part:
        part.write_text(description.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return folder


def load_network(folder: Path) -> tuple[VideoNetwork, dict[str, Any]]:
    """The network of whatever family, on the CPU and in evaluation mode, and its metadata.

    Raises DamagedError, which names the file, if a file is missing or damaged or the weights do not fit the settings.
    """
    found, weights_file = read_description(folder), folder / WEIGHTS_FILE
    build = partial(build_family, found.settings, dims=found.dims, extras_dims=found.extras_dims)
    try:
        with torch.device("meta"):  # shapes alone: settings that the weights do not fit take no memory
            wanted = build().state_dict()
        require_regular(weights_file)
        weights = load_file(weights_file)
        problems = describe_mismatches(wanted, weights)
    except (RuntimeError, ArgumentError, OSError, SafetensorError) as error:
        problems = [f"{error!r:.200}"]
    if problems:
        said = f"{weights_file} is damaged or does not fit {DESCRIPTION_FILE}: {'; '.join(problems[:MAX_MISMATCHES])}"
        raise DamagedError(f"network: {said}; {HINT}")
    network = build()
    network.load_state_dict(weights)
    return network.eval(), found.metadata


def describe_mismatches(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """One line per tensor that is missing, unknown, of another shape or dtype, or not finite; empty if all fit."""
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is unknown" for name in found if name not in wanted]
    for name, tensor in found.items():
        if name in wanted and tensor.shape != wanted[name].shape:
            lines.append(f"{name} has shape {tuple(tensor.shape)}, wanted {tuple(wanted[name].shape)}")
        elif name in wanted and tensor.dtype != wanted[name].dtype:
            lines.append(f"{name} has values of {tensor.dtype}, wanted {wanted[name].dtype}")
        elif not bool(tensor.isfinite().all()):
            lines.append(f"{name} has NaN or infinite values")
    return lines
