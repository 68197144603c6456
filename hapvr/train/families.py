"""The training of each family of networks."""

from torch import nn

from hapvr.config import TrainConfig
from hapvr.losses.objective import Objective
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.tca import ContextNetwork
from hapvr.model.vvs import VvsNetwork
from hapvr.train.similarity import TrainingModule
from hapvr.train.tca import ContrastTraining
from hapvr.train.vvs import SuppressionTraining


def build_training(
    settings: TrainConfig,
    network: VideoNetwork,
    *,
    num_videos: int,
    batch_videos: int,
    clips_per_item: int,
) -> nn.Module:
    """The training of a network by its family: called with a batch and its number, it returns the
    loss [] and its terms [] by name.

    Whatever else changes while training, such as a memory bank or a key encoder, is a buffer or a
    submodule, so that it is in the checkpoint and on the device. Random draws are functions of the
    seed and the batch's number, never of torch's global generator, so that a resumed training ends
    as an uninterrupted one. DDP waits for a gradient of every weight, and the gradients that it
    averages over processes are those of one process with the whole batch.

    num_videos: in the training.
    batch_videos: in a batch.
    clips_per_item: of a batch, see `Batch`.

    Raises:
        ConfigError: settings that do not fit these."""
    if isinstance(network, SimilarityNetwork):
        return TrainingModule(network, Objective(settings.objective))
    if isinstance(network, ContextNetwork):
        return ContrastTraining(
            network,
            settings,
            num_videos=num_videos,
            batch_videos=batch_videos,
            clips_per_item=clips_per_item,
        )

    assert isinstance(network, VvsNetwork)
    return SuppressionTraining(network, settings)
