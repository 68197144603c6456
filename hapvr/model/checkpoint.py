"""Networks as files: weights in safetensors, and settings and metadata in JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hapvr.errors import ArgumentError, DataError
from hapvr.files import write_atomic
from hapvr.model.description import DESCRIPTION_FILE, FORMAT_VERSION, WEIGHTS_FILE, read_description
from hapvr.model.families import build_family
from hapvr.model.family import VideoNetwork

MAX_MISMATCHES = 10


def save_network(network: VideoNetwork, folder: Path, *, metadata: Mapping[str, Any]) -> Path:
    """Write weights and description into the folder, made if missing; returns it.

    metadata: values of JSON, stored under "metadata"; ArgumentError for others. The description is written last, so a
    folder that has one is complete.
    """
    description = {
        "format_version": FORMAT_VERSION,
        "settings": network.scoring_settings(),
        "metadata": dict(metadata),
    }
    try:
        text = json.dumps(description, indent=2, sort_keys=True)
    except TypeError as error:
        raise ArgumentError(
            f"metadata: cannot be written as JSON: {error}; wanted text, numbers, lists, maps"
        ) from None
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with write_atomic(folder / WEIGHTS_FILE) as part:
        save_file(weights, part)
    with write_atomic(folder / DESCRIPTION_FILE) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return folder


def load_network(folder: Path) -> tuple[VideoNetwork, dict[str, Any]]:
    """The network of whatever family, on the CPU and in evaluation mode, and its metadata.

    Raises DataError, which names the file, if a file is missing or damaged or the weights do not fit the settings.
    """
    found, weights_file = read_description(folder), folder / WEIGHTS_FILE
    build = partial(build_family, found.settings, dims=found.dims, side_dims=found.side_dims or 0)
    try:
        with torch.device("meta"):  # shapes alone: settings that the weights do not fit take no memory
            wanted = build().state_dict()
        weights = load_file(weights_file)
    except (RuntimeError, ArgumentError) as error:
        raise DataError(
            f"network: {folder / DESCRIPTION_FILE}: settings do not fit this version: {error!r:.200}"
        ) from error
    except SafetensorError as error:
        raise DataError(f"network: {weights_file} is damaged: {error}; copy or train it again") from error
    mismatches = describe_mismatches(
        *({name: tuple(tensor.shape) for name, tensor in state.items()} for state in (wanted, weights))
    )
    if mismatches:
        raise DataError(
            f"network: {weights_file} does not fit its settings: {'; '.join(mismatches[:MAX_MISMATCHES])}; copy or train "
            "it again"
        )
    network = build(generator=torch.Generator())
    network.load_state_dict(weights)
    return network.eval(), found.metadata


def describe_mismatches(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> list[str]:
    """One line per tensor that is missing, unknown or of another shape; empty if all fit."""
    lines = [f"{name} is missing" for name in wanted if name not in found]
    lines += [f"{name} is unknown" for name in found if name not in wanted]
    lines += [
        f"{name} has shape {found[name]}, wanted {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    return lines
