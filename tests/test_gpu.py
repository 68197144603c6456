"""What a GPU computes is what a processor computes: `pytest -m gpu` where torch finds CUDA."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.training import run_step
from hapvr.model.checkpoint import load_network
from hapvr.networks.backbone import load_backbone
from hapvr.networks.settings import BackboneConfig, Weights
from hapvr.networks.whitening import fit_whitening
from hapvr.scorer.bundle import load_bundle
from hapvr.seeding import numpy_rng
from hapvr.steps.project import Project
from hapvr.steps.training import prepare_training, run_training
from hapvr.train.run_folder import read_history
from tests.scorer.bundles import make_bundle
from tests.train.runs import run, with_train

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
STEPS = 8


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    """Convolutions without TF32, whose rounding would hide errors."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("num_clips", "num_frames"), [(8, 12), (32, 28)])
def test_loss_and_gradients(num_clips: int, num_frames: int) -> None:
    """Of a step with all terms of the objective."""
    loss, gradients = run_step("ours", num_clips, num_frames, torch.device(DEVICE))()
    expected, reference = run_step("ours", num_clips, num_frames, torch.device("cpu"))()
    assert loss == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(
        gradients.cpu(), reference, rtol=1e-2, atol=1e-4 * float(reference.abs().max())
    )


@pytest.mark.parametrize(
    "architecture", ["tf_efficientnet_lite0", "vit_small_patch16_224", "resnet50.tv_in1k"]
)
def test_regions_of_frames(architecture: str) -> None:
    """Of a packaged network and of others, whitened."""
    source = "packaged" if architecture.startswith("tf_") else "random"
    config = BackboneConfig(architecture=architecture, weights=Weights(source=source), crop_px=224)
    noise = numpy_rng(0, "frames").integers(0, 255, (6, 3, 14, 14), dtype=np.uint8)
    frames = np.kron(noise, np.ones((1, 1, 16, 16), np.uint8))
    regions = load_backbone(config).embedder(None, "cpu")(frames)
    whitening = fit_whitening(regions.reshape(-1, regions.shape[-1]), dims=16)
    actual = load_backbone(config).embedder(whitening, DEVICE)(frames)
    expected = load_backbone(config).embedder(whitening, "cpu")(frames)
    assert float((actual * expected).sum(-1).min()) > 0.9995


def test_scores_of_a_bundle(scenes: Path, tmp_path: Path) -> None:
    """Of two videos that share footage, and of two that do not."""
    bundle = make_bundle(tmp_path)
    pairs = [(str(scenes / "a.mp4"), str(scenes / other)) for other in ("copy.mp4", "b.mp4")]
    actual = [result.similarity for result in load_bundle(bundle, device=DEVICE).score_pairs(pairs)]
    expected = [
        result.similarity for result in load_bundle(bundle, device="cpu").score_pairs(pairs)
    ]
    assert actual == pytest.approx(expected, abs=1e-3)


def test_training(small_project: Project, tmp_path: Path) -> None:
    """In a process of its own, tracked; losses as on a processor, and in bf16-mixed near them."""
    config = with_train(small_project, steps=STEPS)
    run(small_project, tmp_path, config)
    losses = {"cpu": tmp_path}
    for precision in ("32-true", "bf16-mixed"):
        changed = with_train(small_project, steps=STEPS, precision=precision).model_copy(
            update={"device": DEVICE}
        )
        training = prepare_training(
            Project(changed, small_project.root, small_project.folder), precision, tags={}
        )
        run_training(small_project, training)
        assert load_network(training.folder / "network")
        losses[precision] = training.folder

    histories = [
        [line["loss/total"] for line in read_history(folder) if "loss/total" in line]
        for folder in losses.values()
    ]
    cpu, full, mixed = histories
    assert full == pytest.approx(cpu, rel=2e-2)
    assert mixed == pytest.approx(cpu, rel=0.2)
