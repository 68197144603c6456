"""One step: accumulated batches, clipped gradients, averaged weights, compiled modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hapvr.config import OptimizerConfig
from hapvr.losses.objective import Objective
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.stages.project import Project
from hapvr.train.checkpoint import list_checkpoints
from hapvr.train.families import build_network
from hapvr.train.guards import CompilerError
from hapvr.train.report import read_history
from hapvr.train.schedule import copy_for_ema, update_ema
from hapvr.train.similarity import TrainingModule
from tests.train.runs import cached_views, run, same_weights, with_train, without_times


def test_accumulated_step_has_the_mean_gradient_of_its_batches(small_project: Project, tmp_path: Path) -> None:
    """The norm that is logged is that of the mean over two batches, made here batch by batch."""
    run(small_project, tmp_path, with_train(small_project, steps=1, accumulate_batches=2))
    settings = small_project.config.train
    network = build_network(settings.network, dims=32, seed=settings.seed)
    step = TrainingModule(network, Objective(settings.objective))
    for number in (0, 1):
        batch = cached_views(small_project)[number]
        total = step(replace(batch, regions=batch.regions.float()))[0]
        (total / 2).backward()
    norm = torch.stack([parameter.grad.norm() for parameter in network.parameters()]).norm()
    assert read_history(tmp_path)[0]["gradient_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_gradients_are_clipped_to_the_norm_asked_for(small_project: Project, tmp_path: Path) -> None:
    """Clipping changes the weights, and the norm before it is what is logged."""
    clipped = OptimizerConfig(learning_rate=1e-3, warmup_steps=2, gradient_clip_norm=1e-3)
    run(small_project, tmp_path / "free")
    run(small_project, tmp_path / "clipped", with_train(small_project, optimizer=clipped))
    norms = [read_history(tmp_path / name)[0]["gradient_norm"] for name in ("free", "clipped")]
    assert norms[1] > 1e-3
    assert not same_weights(tmp_path / "free", tmp_path / "clipped")


def test_ema_follows_the_weights_by_its_decay() -> None:
    """Two updates by hand: the second step's decay is 2/11, and later ones the decay asked for."""
    network = SimilarityNetwork(NetworkSettings(), dims=4, generator=torch.Generator().manual_seed(0))
    ema = copy_for_ema(network)
    before = ema.attention.transform.bias.clone()
    with torch.no_grad():
        network.attention.transform.bias += 1.0
    update_ema(ema, network, decay=0.9, step=1)
    torch.testing.assert_close(ema.attention.transform.bias, before + 9 / 11)
    update_ema(ema, network, decay=0.9, step=1000)
    torch.testing.assert_close(ema.attention.transform.bias, before + 1 - 2 / 11 * 0.9)
    assert not any(parameter.requires_grad for parameter in ema.parameters())


def test_averaged_weights_are_validated_and_kept(small_project: Project, tmp_path: Path) -> None:
    """With a decay, validation sees the mean, which is what the run folder holds in the end."""
    seen: list[torch.Tensor] = []

    def validate(network: SimilarityNetwork) -> dict[str, float]:
        seen.append(next(network.parameters()).detach().clone())
        return {"mean": float(len(seen))}

    run(small_project, tmp_path / "plain")
    run(small_project, tmp_path / "mean", with_train(small_project, ema_decay=0.9), validate=validate)
    assert torch.equal(next(load_network(tmp_path / "mean" / "network")[0].parameters()), seen[-1])
    assert not same_weights(tmp_path / "plain", tmp_path / "mean")
    totals = [
        [line["loss/total"] for line in read_history(tmp_path / name) if "loss/total" in line]
        for name in ("plain", "mean")
    ]
    assert totals[0] == totals[1]


def test_resuming_is_exact_with_averages_and_accumulation(small_project: Project, tmp_path: Path) -> None:
    """A run that goes on from an older checkpoint ends as the uninterrupted one, bit for bit."""
    config = with_train(small_project, ema_decay=0.9, accumulate_batches=2)
    run(small_project, tmp_path / "whole", config)
    run(small_project, tmp_path / "cut", config)
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    assert run(small_project, tmp_path / "cut", config).first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert without_times(read_history(tmp_path / "whole")) == without_times(read_history(tmp_path / "cut"))


def test_training_stops_when_patience_is_over(small_project: Project, tmp_path: Path) -> None:
    """Two validations without a better one end it; the best is kept, and a second call does nothing more."""
    values = iter([0.5, 0.9, 0.9, 0.8, 1.0])
    config = with_train(small_project, steps=20, validate_every_steps=2, patience=2)

    def validate(_network: SimilarityNetwork) -> dict[str, float]:
        return {"mean": next(values)}

    result = run(small_project, tmp_path, config, validate=validate)
    assert (result.steps, result.best_step, result.best_value) == (8, 3, 0.9)
    again = run(small_project, tmp_path, config, validate=validate)
    assert (again.first_step, again.steps, again.best_step) == (8, 8, 3)
    assert again.weights_sha256 == result.weights_sha256


def test_patience_survives_a_resumed_run(small_project: Project, tmp_path: Path) -> None:
    """Validations without a better one are counted on, not anew."""
    config = with_train(small_project, steps=20, validate_every_steps=2, patience=3)
    whole = run(small_project, tmp_path / "whole", config, validate=lambda _: {"mean": 0.5})
    run(small_project, tmp_path / "cut", config, validate=lambda _: {"mean": 0.5})
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    again = run(small_project, tmp_path / "cut", config, validate=lambda _: {"mean": 0.5})
    assert (again.first_step, again.steps) == (6, whole.steps) == (6, 8)


@pytest.mark.slow
def test_compiled_training_gives_the_same_losses(small_project: Project, tmp_path: Path) -> None:
    """With train.compile the losses agree with those without to rounding."""
    short = {"steps": 3, "log_every_steps": 1}
    run(small_project, tmp_path / "plain", with_train(small_project, **short))
    run(small_project, tmp_path / "compiled", with_train(small_project, compile=True, **short))
    plain, compiled = ([line["loss/total"] for line in read_history(tmp_path / name)] for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.slow
def test_compiling_without_a_compiler_says_what_to_do(
    small_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No silent fall-back to uncompiled training."""
    import torch._inductor.config

    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    absent = {"cpp.cxx": (str(tmp_path / "no-compiler"),)}  # monkeypatch would leave the setting away afterwards
    message = r"g\+\+.*train\.compile to false"
    with torch._inductor.config.patch(absent), pytest.raises(CompilerError, match=message):
        run(small_project, tmp_path, with_train(small_project, compile=True))
