"""Descriptors of real clips: frames of one colour and frames that stand still cannot be found, all
others can."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from hapvr.demo.corpus import write_mp4
from hapvr.errors import DataError
from hapvr.model.checkpoint import build_network, save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings, TcaSettings, VvsSettings
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import fit_whitening
from hapvr.scorer.blank import blank_pictures, mean_directions
from hapvr.scorer.open_bundle import stored_network_digest
from hapvr.search.descriptors import frame_descriptors
from hapvr.seeding import torch_rng
from hapvr.steps.search_model import network_digest
from hapvr.video.frames import center_crop
from hapvr.video.sampling import sample_frames
from tests.scorer.bundles import BACKBONE, scene

DIMS = 32
NETWORK = SimilarityNetwork(NetworkSettings(), dims=DIMS, generator=torch_rng("descriptors")).eval()


@pytest.fixture(scope="module")
def embed() -> Callable[[npt.NDArray[np.uint8]], Tensor]:
    """Crops -> whitened regions, by a ResNet-18 of random weights."""
    backbone = load_backbone(BACKBONE)
    pictures = np.stack([scene(1000 + number) for number in range(40)]).transpose(0, 3, 1, 2)
    with torch.inference_mode():
        regions = backbone.regions(
            torch.from_numpy(center_crop(pictures, backbone.crop_px))
        ).flatten(0, 1)

    crop_embedder = backbone.embedder(fit_whitening(regions, dims=DIMS), "cpu")
    return lambda frames: torch.from_numpy(crop_embedder(frames))


def test_blank_and_frozen_frames_are_marked(
    embed: Callable[[npt.NDArray[np.uint8]], Tensor], tmp_path: Path
) -> None:
    def colour(*rgb: int) -> npt.NDArray[np.uint8]:
        return np.tile(np.array(rgb, np.uint8), (160, 192, 1))

    pictures = [
        colour(0, 0, 0),
        scene(1),
        colour(16, 16, 16),
        scene(2),
        scene(2),
        colour(255, 255, 255),
        scene(3),
    ]
    write_mp4(tmp_path / "a.mp4", np.repeat(np.stack(pictures), 2, axis=0), fps=2)
    frames = np.stack(sample_frames(tmp_path / "a.mp4", fps=2, short_side_px=None)[1])
    crops = center_crop(frames.transpose(0, 3, 1, 2), BACKBONE.crop_px)
    with torch.inference_mode():
        blank = mean_directions(NETWORK.embed(embed(blank_pictures(BACKBONE.crop_px))).numpy())
        descriptors = frame_descriptors(NETWORK.embed(embed(crops)).numpy(), blank=blank)

    still = ["", "frozen"]
    assert descriptors.reasons.tolist() == [
        *["blank"] * 2,
        *still,
        *["blank"] * 2,
        *still,
        *["frozen"] * 2,
        *["blank"] * 2,
        *still,
    ]
    np.testing.assert_allclose(np.linalg.norm(descriptors.vectors, axis=1), 1, atol=1e-5)
    assert descriptors.kept.sum() == 3


def test_descriptors_are_the_network_with_averages_over_regions() -> None:
    """The principle: the dot product of two means is TopK-Chamfer at spatial_rate 1, up to the
    lengths."""
    first = torch.randn(5, 9, DIMS, generator=torch_rng("first"))
    second = torch.randn(5, 9, DIMS, generator=torch_rng("second"))
    network = SimilarityNetwork(
        NetworkSettings(spatial_rate=1), dims=DIMS, generator=torch_rng("descriptors")
    ).eval()
    with torch.inference_mode():
        first_embedded = network.embed(first)
        second_embedded = network.embed(second)
        exact = network.compare(first_embedded[None], second_embedded[None]).frame[0, 0].numpy()
        lengths = [
            embedded.mean(dim=1).norm(dim=1).numpy()
            for embedded in (first_embedded, second_embedded)
        ]

    similarities = (
        frame_descriptors(first_embedded.numpy()).vectors
        @ frame_descriptors(second_embedded.numpy()).vectors.T
    )
    np.testing.assert_allclose(similarities * np.outer(*lengths), exact, atol=1e-5)


@pytest.mark.parametrize("settings", [NetworkSettings(), TcaSettings(heads=4), VvsSettings()])
def test_a_stored_network_is_known_by_its_files(
    settings: AnyNetworkSettings, tmp_path: Path
) -> None:
    """Read without torch, a network of any family has the digest of the network in memory."""
    network = build_network(settings, dims=DIMS, extras_dims=8, seed=1)
    assert stored_network_digest(save_network(network, tmp_path, metadata={})) == network_digest(
        network
    )
    (tmp_path / "network.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match=r"network\.safetensors is damaged"):
        stored_network_digest(tmp_path)
