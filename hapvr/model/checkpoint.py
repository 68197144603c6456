"""Networks as files: weights in safetensors, and settings and metadata in JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hapvr.errors import ArgumentError, DataError
from hapvr.files import write_atomic
from hapvr.model.families import build_family, read_settings
from hapvr.model.family import VideoNetwork
from hapvr.settings import explain

WEIGHTS_FILE = "network.safetensors"
DESCRIPTION_FILE = "network.json"
FORMAT_VERSION = 1


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
    description_file, weights_file = folder / DESCRIPTION_FILE, folder / WEIGHTS_FILE
    for file in (description_file, weights_file):
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
        dims, side_dims = settings.pop("dims"), settings.pop("side_dims", 0)
        generator = torch.Generator()
        network = build_family(read_settings(settings), dims=dims, side_dims=side_dims, generator=generator)
        weights = load_file(weights_file)
    except ValidationError as error:
        raise DataError(f"network: {description_file}: settings do not fit this version: {explain(error)}") from error
    except (AttributeError, KeyError, TypeError, ArgumentError) as error:
        raise DataError(f"network: {description_file}: settings do not fit this version: {error!r}") from error
    except SafetensorError as error:
        raise DataError(f"network: {weights_file} is damaged: {error}; copy or train it again") from error
    mismatches = describe_mismatches(
        {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()},
        {name: tuple(tensor.shape) for name, tensor in weights.items()},
    )
    if mismatches:
        raise DataError(f"network: {weights_file} does not fit its settings: {'; '.join(mismatches)}")
    network.load_state_dict(weights)
    return network.eval(), metadata


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
