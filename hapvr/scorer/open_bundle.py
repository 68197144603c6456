"""A bundle that was opened: its records are read once, checked, and passed on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hapvr.files import digest_of
from hapvr.model.checkpoint import (
    NetworkDescription,
    read_description as read_network,
    scoring_settings,
    weights_sha256,
)
from hapvr.scorer.bundle import load_described, read_evidence
from hapvr.scorer.description import NETWORK_FOLDER, Description, read_description
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.scorer import VideoScorer


@dataclass(frozen=True, eq=False)
class OpenBundle:
    """A bundle whose records are each read on first use."""

    folder: Path
    description: Description

    @staticmethod
    def open(folder: Path) -> "OpenBundle":
        """Raises: DataError for a folder without a bundle, DamagedError for one that cannot be
        used."""
        return OpenBundle(folder, read_description(folder))

    @cached_property
    def network(self) -> NetworkDescription:
        """The description of the similarity network. Raises DamagedError for one that cannot be
        used."""
        return read_network(self.folder / NETWORK_FOLDER)

    @cached_property
    def network_digest(self) -> str:
        """As `stored_network_digest`, of the bundle's network."""
        return _network_digest(self.network, self.folder / NETWORK_FOLDER)

    @cached_property
    def evidence(self) -> EvidenceModel | None:
        """How the bundle weighs the evidence of a search; None if it has no weights. Raises
        DamagedError for a file that cannot be used."""
        return read_evidence(self.folder)

    def load(self, *, device: str) -> VideoScorer:
        """The scorer of the bundle. Raises as `load_bundle` does."""
        return load_described(self.folder, self.description, device=device)

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """As `Description.require_features`."""
        self.description.require_features(self.folder, settings)


def stored_network_digest(folder: Path) -> str:
    """16 hex digits of everything that decides the scores of a network in a folder of
    `save_network`, without torch. Raises DataError for a damaged one."""
    return _network_digest(read_network(folder), folder)


def _network_digest(network: NetworkDescription, folder: Path) -> str:
    return digest_of([scoring_settings(network), weights_sha256(folder)])[:16]
