"""TCA's network and descriptors against the numbers of its release (tests/golden/tca_golden.md)."""

import pytest
import torch

from hapvr.model.family import video_vectors
from hapvr.networks.backbone import imac, imac_released, l3_irmac, l3_irmac_released
from hapvr.networks.whitening import fit_whitening
from hapvr.seeding import torch_rng
from tests.model.tca import release

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LEVELS = {
    "cosine": {},
    "chamfer": {"level": "frame"},
    "symmetric": {"level": "frame", "symmetric_chamfer": True},
}


@pytest.fixture(scope="module")
def golden() -> release.Arrays:
    return release.read()


@pytest.mark.parametrize("name", ["query", "reference"])
@pytest.mark.parametrize("training", [False, True])
def test_encoder(golden: release.Arrays, name: str, training: bool) -> None:
    """Encoded frames, frame vectors and video vectors, in both of torch's ways to compute a
    layer."""
    network = release.network_of(golden).train(training)
    frames, mask = release.frames_of(golden, name)
    with torch.no_grad():
        encoded = network.embed(frames[:, :, None], mask=mask)
    assert encoded.shape == (*frames.shape[:2], 1, frames.shape[2])
    torch.testing.assert_close(encoded[:, :, 0], golden[f"{name}/encoded"], **CLOSE)
    torch.testing.assert_close(
        video_vectors(encoded[:, :, 0], mask), golden[f"{name}/video"], **CLOSE
    )
    unit = torch.nn.functional.normalize(encoded[:, :, 0], dim=-1)
    torch.testing.assert_close(unit, golden[f"{name}/frames"], **CLOSE)


@pytest.mark.parametrize("kind", LEVELS)
def test_similarities_of_batches_and_of_videos_videos(golden: release.Arrays, kind: str) -> None:
    """The padded batches that training compares, and the videos videos that the scoring engine
    compares."""
    network = release.network_of(golden, **LEVELS[kind])
    query, query_mask = release.frames_of(golden, "query")
    reference, reference_mask = release.frames_of(golden, "reference")
    with torch.no_grad():
        first = network.embed(query[:, :, None], mask=query_mask)
        second = network.embed(reference[:, :, None], mask=reference_mask)
        compared = network.compare(
            first, second, query_mask=query_mask, reference_mask=reference_mask
        )

    wanted = golden[f"similarity/{kind}"]
    torch.testing.assert_close(compared.video, wanted, **CLOSE)
    with torch.inference_mode():
        videos = [
            [network.embed(clip[m][:, None]) for clip, m in zip(clips, masks, strict=True)]
            for clips, masks in ((query, query_mask), (reference, reference_mask))
        ]

    torch.testing.assert_close(network.score_videos(*videos), wanted, **CLOSE)
    if kind == "chamfer":
        torch.testing.assert_close(
            network.score_videos(*videos[::-1]), golden["similarity/chamfer_back"], **CLOSE
        )


def test_descriptors_of_feature_maps_are_those_of_the_release(golden: release.Arrays) -> None:
    """iMAC and L3-iRMAC of four maps."""
    maps = [golden[f"feature/map{number}"] for number in range(1, 5)]
    torch.testing.assert_close(imac_released(maps), golden["feature/imac"], **CLOSE)
    torch.testing.assert_close(l3_irmac_released(maps), golden["feature/rmac"], **CLOSE)


def test_descriptors_of_feature_maps_are_those_of_the_paper() -> None:
    """iMAC is the largest value of each channel (Eq. 1); L3-iRMAC the sum of nine max-pooled
    regions, a unit vector for each map."""
    sides = (56, 28, 14, 7)
    maps = [torch.rand(2, 3 + side % 5, side, side, generator=torch_rng(side)) for side in sides]
    largest = [
        [float(channel.max()) for feature_map in maps for channel in feature_map[n]]
        for n in range(2)
    ]
    torch.testing.assert_close(imac(maps), torch.tensor(largest))
    wanted = []
    for feature_map, kernel, stride in zip(maps, (28, 14, 6, 3), (14, 7, 3, 2), strict=True):
        total = torch.zeros(feature_map.shape[:2])
        for top in range(3):
            for left in range(3):
                rows = slice(stride * top, stride * top + kernel)
                columns = slice(stride * left, stride * left + kernel)
                total += feature_map[:, :, rows, columns].amax((2, 3))

        wanted.append(total / total.norm(dim=1, keepdim=True))

    torch.testing.assert_close(l3_irmac(maps), torch.cat(wanted, dim=1), rtol=1e-5, atol=1e-6)


def test_whitening(golden: release.Arrays) -> None:
    """PCA with whitening and unit length, up to the signs of its axes."""
    data = golden["pca/data"]
    wanted = golden["pca/whitened"]
    whitened = torch.from_numpy(fit_whitening(data, dims=wanted.shape[1]).apply(data))
    signs = torch.sign((whitened * wanted).sum(0))
    torch.testing.assert_close(whitened * signs, wanted, rtol=1e-4, atol=1e-4)
