"""Which network an index belongs to: a digest of everything that decides its scores, also without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hapvr.model.description import read_description, weights_sha256

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork

DIGITS = 16


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits; equal for networks that score alike."""
    from hapvr.features.weights import state_sha256

    return _digest(network.scoring_settings(), state_sha256(network.state_dict()))


def stored_network_digest(folder: Path) -> str:
    """`network_digest` of the network in a folder of `save_network`, from its files. Raises DataError for a damaged one."""
    return _digest(read_description(folder).scoring_settings(), weights_sha256(folder))


def _digest(settings: Mapping[str, Any], weights: str) -> str:
    return hashlib.sha256(json.dumps([settings, weights], sort_keys=True).encode()).hexdigest()[:DIGITS]
