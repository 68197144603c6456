"""The training loop: Lightning Fabric for devices, precision and DDP; everything else is here to be read."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch
from filelock import FileLock, Timeout
from lightning.fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader

from hapvr.config import Config, digest
from hapvr.errors import ArgumentError, DataError, HapvrError
from hapvr.features.weights import state_sha256
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.storage.filesystem import DataRoot
from hapvr.train.checkpoint import Best, load_latest, save_checkpoint
from hapvr.train.data import Batch, CachedViews
from hapvr.train.report import Listener
from hapvr.train.schedule import build_optimizer, build_scheduler
from hapvr.train.step import TrainingStep, build_network, build_objective

CHECKPOINTS = "checkpoints"
NETWORK = "network"
RESULT_NAME = "result.json"

Validate = Callable[[SimilarityNetwork], Mapping[str, float]]


class TrainingStoppedError(HapvrError):
    """Training was asked to stop; its last checkpoint says where it goes on."""


class NotFiniteError(HapvrError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class TrainingResult:
    """first_step: 0, or where a resumed run went on; best_step and best_value: of validation, -1 and 0 without one.

    wait_rate: part of the time in which the loop waited for data.
    """

    steps: int
    first_step: int
    best_step: int
    best_value: float
    num_videos: int
    seconds: float
    wait_rate: float
    weights_sha256: str


def train(
    config: Config,
    root: DataRoot,
    training_shards: list[str],
    *,
    folder: Path,
    fabric: Fabric,
    validate: Validate | None,
    listen: Callable[[int], Listener],
) -> TrainingResult:
    """Train until `train.steps`, going on from the newest checkpoint in `folder`, and write the best network there.

    validate: network -> metrics, of which "mean" chooses the best; without it the last weights are the result.
    listen: called on rank 0 with the first step; gets losses, learning rate, gradient norm and validation.
    Raises DataError for unusable views or checkpoints, NotFiniteError, TrainingStoppedError after SIGTERM.
    """
    settings = config.train
    data = CachedViews(
        root,
        training_shards,
        batch_videos=settings.batch_videos,
        seed=settings.seed,
        rates=config.pseudo_labels,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    network = build_network(settings.network, dims=config.whitening.dims, seed=settings.seed)
    optimizer = build_optimizer(network, settings.optimizer)
    scheduler = build_scheduler(optimizer, settings.optimizer, steps=settings.steps)
    config_digest = digest(settings, config.views, config.pseudo_labels)
    with _only_writer(folder, fabric), _stop_flag() as stop_asked:
        first_step, best = load_latest(
            folder / CHECKPOINTS,
            network=network,
            optimizer=optimizer,
            scheduler=scheduler,
            config_digest=config_digest,
        )
        module, wrapped_optimizer = fabric.setup(TrainingStep(network, build_objective(settings.objective)), optimizer)
        listener = listen(first_step) if fabric.is_global_zero else None
        loader = DataLoader(
            data,
            batch_size=None,
            sampler=range(first_step, settings.steps),
            num_workers=settings.data_workers,
            # Not fork: the parent has read Parquet, and Arrow's threads do not survive in a forked child.
            multiprocessing_context="spawn" if settings.data_workers else None,
        )
        if listener and data.batch_videos < settings.batch_videos:
            listener.message(
                f"batches hold {data.batch_videos} videos, as there are no more; train.batch_videos is {settings.batch_videos}"
            )

        def checkpoint(next_step: int) -> None:
            if fabric.is_global_zero:
                save_checkpoint(
                    folder / CHECKPOINTS,
                    step=next_step,
                    network=network,
                    optimizer=optimizer,
                    scheduler=scheduler,
                    best=best,
                    config_digest=config_digest,
                    keep=settings.keep_checkpoints,
                )

        start = time.monotonic()
        waited = 0.0
        batches = iter(loader)
        for step in range(first_step, settings.steps):
            asked = time.monotonic()
            batch: Batch = next(batches)
            waited += time.monotonic() - asked
            rate = optimizer.param_groups[0]["lr"]
            try:
                total, terms, counts = module(
                    fabric.to_device(batch.regions).float(),
                    fabric.to_device(batch.labels),
                    fabric.to_device(batch.frame_labels),
                    fabric.to_device(batch.pair_index),
                )
            except ArgumentError as error:  # the network or a loss found values that are not finite
                raise _not_finite(str(error), step, batch, folder) from error
            if not torch.isfinite(total):
                raise _not_finite(f"the loss is {float(total.detach())}", step, batch, folder)
            fabric.backward(total)
            norm = _clip(fabric, module, wrapped_optimizer, settings.optimizer.gradient_clip_norm)
            wrapped_optimizer.step()
            wrapped_optimizer.zero_grad()
            scheduler.step()
            done = step + 1
            if listener and (done % settings.log_every_steps == 0 or done == settings.steps):
                values = {"loss/total": total} | {f"loss/{name}": term for name, term in terms.items()}
                values |= {f"count/{name}": count for name, count in counts.items()}
                values |= {"learning_rate": rate, "gradient_norm": norm, "wait_rate": waited / _elapsed(start)}
                listener.metrics(step, {name: _number(value) for name, value in values.items()})
            if validate is not None and (done % settings.validate_every_steps == 0 or done == settings.steps):
                best = _validate(validate, network, step, best, listener)
            stop = bool(fabric.strategy.reduce_boolean_decision(stop_asked(), all=False))
            if done % settings.checkpoint_every_steps == 0 or done == settings.steps or stop:
                checkpoint(done)
            if stop and done < settings.steps:
                raise TrainingStoppedError(
                    f"training: stopped after step {done} of {settings.steps}; run it again to go on from there"
                )
        result = TrainingResult(
            steps=settings.steps,
            first_step=first_step,
            best_step=best.step,
            best_value=best.value if best.step >= 0 else 0.0,
            num_videos=len(data.video_ids),
            seconds=_elapsed(start),
            wait_rate=waited / _elapsed(start),
            weights_sha256=state_sha256(best.weights or dict(network.state_dict())),
        )
        if fabric.is_global_zero:
            _write_result(folder, network, best, result, config_digest)
    return result


def _clip(fabric: Fabric, module: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float | None) -> float:
    """Clip gradients if asked to; returns their norm before."""
    limit = float("inf") if max_norm is None else max_norm
    norm = fabric.clip_gradients(module, optimizer, max_norm=limit, error_if_nonfinite=False)
    return float(norm) if isinstance(norm, Tensor) else 0.0


def _validate(validate: Validate, network: SimilarityNetwork, step: int, best: Best, listener: Listener | None) -> Best:
    network.eval()
    with torch.no_grad():
        metrics = validate(network)
    network.train()
    if listener:
        listener.metrics(step, {f"validation/{name}": value for name, value in metrics.items()})
    if metrics["mean"] <= best.value:
        return best
    weights = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    return replace(best, step=step, value=metrics["mean"], weights=weights)


def _not_finite(reason: str, step: int, batch: Batch, folder: Path) -> NotFiniteError:
    """The error, and a file that lists what the batch was made of."""
    dump = folder / f"not-finite-{step:08d}.json"
    dump.write_text(
        json.dumps({"step": step, "video_ids": batch.video_ids, "view_index": batch.view_index.tolist()}, indent=1),
        encoding="utf-8",
    )
    return NotFiniteError(
        f"training: step {step}: {reason}; the videos of its batch are listed in {dump}. "
        f"Lower train.optimizer.learning_rate, or set train.optimizer.gradient_clip_norm"
    )


def _number(value: Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _write_result(
    folder: Path, network: SimilarityNetwork, best: Best, result: TrainingResult, config_digest: str
) -> None:
    if best.weights:
        network.load_state_dict(best.weights)
    metadata = {"config_digest": config_digest, "best_step": result.best_step, "steps": result.steps}
    save_network(network, folder / NETWORK, metadata=metadata)
    (folder / RESULT_NAME).write_text(json.dumps(result.__dict__, indent=1), encoding="utf-8")


def _elapsed(start: float) -> float:
    return max(time.monotonic() - start, 1e-9)


@contextmanager
def _only_writer(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Rank 0 holds a lock on the run's folder, so that an orphan and its retry never write the same checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    if not fabric.is_global_zero:
        yield
        return
    try:
        with FileLock(folder / "training.lock", timeout=30):
            yield
    except Timeout:
        raise DataError(
            f"training: another process is training in {folder}; wait for it or stop it (the lock is training.lock there)"
        ) from None


@contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Turns SIGTERM into a question that the loop asks between steps."""
    asked = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before)
