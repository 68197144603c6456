"""Networks as files: weights in safetensors, and settings and metadata in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hapvr.errors import ArgumentError, DamagedError
from hapvr.files import write_atomic
from hapvr.model.description import DESCRIPTION_FILE, EXTRAS_DIMS_KEY, HINT, WEIGHTS_FILE, read_description
from hapvr.model.families import build_family
from hapvr.model.family import VideoNetwork

MAX_MISMATCHES = 10


def save_network(network: VideoNetwork, folder: Path, *, metadata: Mapping[str, Any]) -> Path:
    """Write weights and description into the folder, made if missing; returns it.

    metadata: values of JSON, stored under "metadata". The description is written last, so a folder that has one is
    complete.
    """
    settings: dict[str, Any] = network.scoring_settings()
    sizes = {name: settings.pop(name) for name in ("dims", EXTRAS_DIMS_KEY) if name in settings}
    description = sizes | {"settings": settings, "metadata": dict(metadata)}
    text = json.dumps(description, indent=2, sort_keys=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with write_atomic(folder / WEIGHTS_FILE) as part:
        save_file(weights, part)
    with write_atomic(folder / DESCRIPTION_FILE) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return folder


def load_network(folder: Path) -> tuple[VideoNetwork, dict[str, Any]]:
    """The network of whatever family, on the CPU and in evaluation mode, and its metadata.

    Raises DamagedError, which names the file, if a file is missing or damaged or the weights do not fit the settings.
    """
    found, weights_file = read_description(folder), folder / WEIGHTS_FILE
    build = partial(build_family, found.settings, dims=found.dims, extras_dims=found.extras_dims or 0)
    try:
        with torch.device("meta"):  # shapes alone: settings that the weights do not fit take no memory
            wanted = build().state_dict()
        weights = load_file(weights_file)
    except (RuntimeError, ArgumentError) as error:
        raise DamagedError(f"network: {folder / DESCRIPTION_FILE}: no network: {error!r:.200}; {HINT}") from error
    except SafetensorError as error:
        raise DamagedError(f"network: {weights_file} is damaged: {error}; {HINT}") from error
    if mismatches := describe_mismatches(wanted, weights):
        raise DamagedError(f"network: {weights_file}: {'; '.join(mismatches[:MAX_MISMATCHES])}; {HINT}")
    network = build(generator=torch.Generator())
    network.load_state_dict(weights)
    return network.eval(), found.metadata


def describe_mismatches(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], names: Mapping[str, str] | None = None
) -> list[str]:
    """One line per tensor that is missing, unknown, of another shape or not finite; empty if all fit.

    names: what tensors are called in a message, where the file has other names.
    """

    def name_of(name: str) -> str:
        return name if names is None else names.get(name, f"{name} (as named here)")

    lines = [f"{name_of(name)} is missing" for name in wanted if name not in found]
    lines += [f"{name_of(name)} is unknown" for name in found if name not in wanted]
    for name, tensor in found.items():
        if name in wanted and tensor.shape != wanted[name].shape:
            lines.append(f"{name_of(name)} has shape {tuple(tensor.shape)}, wanted {tuple(wanted[name].shape)}")
        elif not bool(tensor.isfinite().all()):
            lines.append(f"{name_of(name)} has NaN or infinite values")
    return lines
