"""TCA's network and descriptors against the numbers of its release (tests/golden/tca_golden.md)."""

import pytest
import torch

from hapvr.model.family import video_vectors
from hapvr.networks.backbone import imac, l3_irmac
from hapvr.networks.whitening import fit_whitening
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


def test_descriptors_of_feature_maps(golden: release.Arrays) -> None:
    """iMAC and L3-iRMAC of four maps."""
    maps = [golden[f"feature/map{number}"] for number in range(1, 5)]
    torch.testing.assert_close(imac(maps), golden["feature/imac"], **CLOSE)
    torch.testing.assert_close(l3_irmac(maps), golden["feature/rmac"], **CLOSE)


def test_whitening(golden: release.Arrays) -> None:
    """PCA with whitening and unit length, up to the signs of its axes."""
    data, wanted = golden["pca/data"], golden["pca/whitened"]
    found = torch.from_numpy(fit_whitening(data, dims=wanted.shape[1]).apply(data))
    signs = torch.sign((found * wanted).sum(0))
    torch.testing.assert_close(found * signs, wanted, rtol=1e-4, atol=1e-4)
