"""The training of each family: a configuration becomes a network with fresh weights, and what trains it."""

from __future__ import annotations

from pathlib import Path

from hapvr.config import TrainConfig
from hapvr.errors import ArgumentError, ConfigError, DataError
from hapvr.losses.objective import Objective
from hapvr.model.families import build_family
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.published import import_published
from hapvr.model.settings import AnyNetworkSettings
from hapvr.model.tca.network import ContextNetwork
from hapvr.model.vvs.network import VvsNetwork
from hapvr.seeding import torch_rng
from hapvr.train.contrast import ContrastTraining
from hapvr.train.family import FamilyTraining
from hapvr.train.gather import Gather
from hapvr.train.similarity import TrainingModule
from hapvr.train.suppression import SuppressionTraining


def build_network(settings: AnyNetworkSettings, *, dims: int, seed: int, side_dims: int = 0) -> VideoNetwork:
    """A freshly initialised network; equal seeds give equal weights.

    A comparator that TCA takes from elsewhere has those weights. Raises ConfigError where none are named, DataError for a
    file that has none.
    """
    network = build_family(settings, dims=dims, side_dims=side_dims, generator=torch_rng(seed, "network"))
    if isinstance(network, ContextNetwork) and network.settings.comparator:
        _take_comparator(network)
    return network


def _take_comparator(network: ContextNetwork) -> None:
    file, own = network.settings.comparator_from, network.matcher.comparator
    if file is None:
        raise ConfigError(
            "train.network.comparator_from: TCA does not train a comparator; name a published ViSiL file (.pth) that has one, "
            "or set train.network.comparator to false"
        )
    try:
        found = import_published(Path(file))[0].comparator
    except DataError as error:
        raise DataError(f"train.network.comparator_from: {error}; name a file of ViSiL") from error
    if found is None or own is None:
        raise DataError(f"train.network.comparator_from: {file} has no comparator; name a file of ViSiL")
    own.load_state_dict(found.state_dict())


def build_training(
    settings: TrainConfig, network: VideoNetwork, *, num_videos: int, batch_videos: int, gather: Gather | None
) -> FamilyTraining:
    """What trains a network of its family.

    num_videos: of the training; batch_videos: of a batch, of all processes that share it. Raises ConfigError for settings
    that do not fit these.
    """
    if isinstance(network, SimilarityNetwork):
        return TrainingModule(network, Objective(settings.objective), gather=gather)
    if isinstance(network, ContextNetwork):
        return ContrastTraining(network, settings, num_videos=num_videos, batch_videos=batch_videos, gather=gather)
    if isinstance(network, VvsNetwork):
        return SuppressionTraining(network, settings, gather=gather)
    raise ArgumentError(f"family: {type(network).__name__} has no training; add it to hapvr.train.families")
