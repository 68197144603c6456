"""Frozen networks in half precision and compiled: how far values move, and what stays float32."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.features.backbone import center_crop, load_backbone
from hapvr.features.extract import region_embedder
from hapvr.features.settings import BackboneConfig, Precision, RandomWeights, TeacherConfig
from hapvr.features.teacher import load_teacher
from hapvr.features.whitening import fit_whitening
from hapvr.video.decode import sample_frames

WEIGHTS = RandomWeights(source="random", seed=3)
BACKBONE = BackboneConfig(architecture="resnet18.tv_in1k", weights=WEIGHTS, crop_px=128)
TEACHER = TeacherConfig(architecture="vit_tiny_patch16_224", weights=WEIGHTS)
# The compiler's time grows with the number of blocks.
SMALL_BACKBONE = {"architecture": "resnet10t"}
SMALL_TEACHER = {"options": {"depth": 2}}
HALF: tuple[Precision, ...] = ("bfloat16", "float16")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")


@pytest.fixture(scope="module")
def frames(clips_folder: Path) -> Tensor:
    """[12, 3, 128, 128] uint8: frames of two clips."""
    clips = [
        sample_frames(clips_folder / f"clip {number:02d}.mp4", fps=1, short_side_px=146).frames for number in (0, 1)
    ]
    return torch.cat([center_crop(torch.from_numpy(clip).permute(0, 3, 1, 2), 128) for clip in clips])


def backbone_regions(frames: Tensor, *, precision: Precision = "float32", **changes: Any) -> Tensor:
    """Regions by a backbone of its own, twice in batches of other sizes."""
    backbone = load_backbone(BACKBONE.model_copy(update={"precision": precision, **changes}))
    with torch.inference_mode():
        return torch.cat([backbone.regions(part) for part in (frames[:7], frames[7:])])


def teacher_embeddings(frames: Tensor, *, precision: Precision = "float32", **changes: Any) -> Tensor:
    """Embeddings by a teacher of its own."""
    teacher = load_teacher(TEACHER.model_copy(update={"precision": precision, **changes}), crop_px=128)
    with torch.inference_mode():
        return torch.cat([teacher.embed(part) for part in (frames[:7], frames[7:])])


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("run", [backbone_regions, teacher_embeddings])
def test_half_precision_is_close_to_float32(run: Callable[..., Tensor], precision: Precision, frames: Tensor) -> None:
    """Other values, all within a cosine of 0.99 of the exact ones, given as float32."""
    exact, half = run(frames), run(frames, precision=precision)
    assert half.dtype == torch.float32
    assert not torch.equal(exact, half)
    assert F.cosine_similarity(exact, half, dim=-1).min() > 0.99


@pytest.mark.parametrize("precision", HALF)
def test_only_the_network_runs_in_half_precision(precision: Precision, frames: Tensor) -> None:
    """Norms and whitening are those of float32: half precision would be off by a thousandth."""
    regions = backbone_regions(frames, precision=precision)
    torch.testing.assert_close(regions.norm(dim=-1), torch.ones(len(frames), 9), rtol=0, atol=1e-6)
    whitening = fit_whitening(regions.flatten(0, 1), dims=8)
    backbone = load_backbone(BACKBONE.model_copy(update={"precision": precision}))
    with torch.inference_mode():
        whitened = region_embedder(backbone, whitening, "cpu")(frames[:7])
    assert whitened.dtype == torch.float32
    torch.testing.assert_close(whitened, whitening.apply(regions[:7]), rtol=0, atol=1e-6)
    assert not torch.is_autocast_enabled("cpu")


def test_float32_stays_float32_under_the_callers_autocast(frames: Tensor) -> None:
    """Features do not depend on the precision of a training around them."""
    exact = load_backbone(BACKBONE).network
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        regions = load_backbone(BACKBONE).regions(frames[:2])
        assert exact(torch.zeros(1, 3, 128, 128))[-1].dtype == torch.bfloat16
    torch.testing.assert_close(regions, backbone_regions(frames)[:2], rtol=0, atol=1e-5)


def test_only_weights_and_another_precision_than_float32_are_recorded() -> None:
    """Data from before there was a choice stays valid; compiling is not part of what data is."""
    for load in (
        lambda update: load_backbone(BACKBONE.model_copy(update=update)),
        lambda update: load_teacher(TEACHER.model_copy(update=update), crop_px=128),
    ):
        network = load({"compile": True})
        assert network.settings == network.identity.as_dict()
        assert load({"precision": "bfloat16"}).settings == network.settings | {"precision": "bfloat16"}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "small", "precision"),
    [
        (backbone_regions, SMALL_BACKBONE, "float32"),
        (backbone_regions, SMALL_BACKBONE, "bfloat16"),
        (teacher_embeddings, SMALL_TEACHER, "float32"),
    ],
)
def test_compiled_networks_give_the_same_to_rounding(
    run: Callable[..., Tensor], small: dict[str, Any], precision: Precision, frames: Tensor
) -> None:
    """Batches of two sizes; weights keep their names, so that bundles can be written."""
    eager = run(frames, precision=precision, **small)
    compiled = run(frames, precision=precision, **small, compile=True)
    if precision == "float32":
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert F.cosine_similarity(eager, compiled, dim=-1).min() > 0.999
    state = load_backbone(BACKBONE.model_copy(update={"compile": True})).network.state_dict()
    assert state.keys() == load_backbone(BACKBONE).network.state_dict().keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "small", "section"),
    [(backbone_regions, SMALL_BACKBONE, "backbone"), (teacher_embeddings, SMALL_TEACHER, "teacher")],
)
def test_compiling_without_a_compiler_says_what_to_do(
    run: Callable[..., Tensor],
    small: dict[str, Any],
    section: str,
    frames: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No silent fall-back to the uncompiled network."""
    import torch._inductor.config

    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    message = rf"torch\.compile failed .*g\+\+.*set {section}\.compile to false"
    absent = {"cpp.cxx": (str(tmp_path / "no-compiler"),)}
    with torch._inductor.config.patch(absent), pytest.raises(ConfigError, match=message):
        run(frames, **small, compile=True)
