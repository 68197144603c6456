"""The training loop: Lightning Fabric for devices, precision and DDP; everything else is here to be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader

from hapvr.config import Config, TrainConfig, digest
from hapvr.features.weights import state_sha256
from hapvr.files import write_atomic
from hapvr.model.checkpoint import save_network
from hapvr.model.family import VideoNetwork
from hapvr.storage.filesystem import DataRoot
from hapvr.train.checkpoint import Best, TrainingState, load_latest, save_checkpoint
from hapvr.train.families import build_network, build_training
from hapvr.train.gather import gather_of
from hapvr.train.guards import TrainingStoppedError, only_writer, stop_flag
from hapvr.train.labelled_pairs import LabelledPairs
from hapvr.train.report import RESULT_NAME, Logger, TrainingResult
from hapvr.train.schedule import build_optimizer, build_scheduler, copy_for_ema
from hapvr.train.source import Source, open_source
from hapvr.train.step import Throughput, TrainStep

CHECKPOINTS = "checkpoints"
NETWORK = "network"

Validate = Callable[[VideoNetwork], Mapping[str, float]]


def train(
    config: Config,
    root: DataRoot,
    training_shards: list[str],
    *,
    mined: Sequence[tuple[str, str]] = (),
    labelled: LabelledPairs | None = None,
    folder: Path,
    fabric: Fabric,
    validate: Validate | None,
    open_logger: Callable[[int], Logger],
) -> TrainingResult:
    """Train until `train.steps`, going on from the newest checkpoint in `folder`, and write the best network there.

    mined: pairs of training videos that are labelled as positive, the surest first. labelled: what `train.source:
    labelled_pairs` trains on.
    validate: network -> metrics, of which "mean" chooses the best; without it the last weights are the result.
    open_logger: called on rank 0 with the first step; gets losses, learning rate, gradient norm, validation and batches.
    Raises DataError for unusable data or checkpoints, NotFiniteError, OutOfMemoryError, CompilerError, and
    TrainingStoppedError after SIGTERM.
    """
    settings = config.train
    source = open_source(config, root, training_shards, fabric, mined=mined, labelled=labelled)
    state = _fresh(config, source, fabric)
    identity = {
        "train": settings.content(),
        "views": config.views.model_dump(mode="json"),
        "pseudo_labels": config.pseudo_labels.model_dump(mode="json"),
        "data": source.identity,
        **({"mined_pairs": _pairs_digest(mined)} if mined else {}),
    }
    with only_writer(folder, fabric), stop_flag() as stop_asked:
        if settings.compile:
            state.training.compile()
        module, optimizer = fabric.setup(state.training, state.optimizer)
        resumed = load_latest(folder / CHECKPOINTS, state, settings=identity)
        logger = open_logger(resumed.first_step) if fabric.is_global_zero else None
        if logger:
            for text in (*resumed.skipped, *_small_batch(source, settings), *_apart(state, settings)):
                logger.message(text)
        train_step = TrainStep(settings, fabric=fabric, module=module, optimizer=optimizer, state=state, folder=folder)
        throughput, items = Throughput(), _items(source, settings, resumed.first_step)
        done = resumed.first_step
        while done < settings.steps and not _is_patience_over(settings, state.best):
            step, rate = done, state.optimizer.param_groups[0]["lr"]
            losses = train_step(step, source, items, throughput)
            done += 1
            if logger and (done % settings.log_every_steps == 0 or done == settings.steps):
                logger.metrics(step, losses.metrics() | {"learning_rate": rate} | throughput.rates())
            if validate is not None and (done % settings.validate_every_steps == 0 or done == settings.steps):
                _validate(validate, state, step, logger)
                if logger:
                    logger.batch(step, losses.report)
            is_last = done == settings.steps or _is_patience_over(settings, state.best)
            stop = bool(fabric.strategy.reduce_boolean_decision(stop_asked(), all=False))
            if fabric.is_global_zero and (done % settings.checkpoint_every_steps == 0 or is_last or stop):
                save_checkpoint(
                    folder / CHECKPOINTS, state, step=done, settings=identity, keep=settings.keep_checkpoints
                )
            if stop and not is_last:
                raise TrainingStoppedError(
                    f"training: stopped after step {done} of {settings.steps}; run it again to go on from there"
                )
        if logger and done < settings.steps:
            logger.message(f"stopped after {settings.patience} validations without a better one, at step {done}")
        result = TrainingResult(
            steps=done,
            first_step=resumed.first_step,
            best_step=state.best.step,
            best_value=state.best.value if state.best.step >= 0 else 0.0,
            num_videos=source.num_videos,
            seconds=throughput.seconds,
            **throughput.rates(),
            weights_sha256=state_sha256(dict(state.best.weights) or dict(state.result.state_dict())),
        )
        if fabric.is_global_zero:
            _write_result(folder, state, result, digest(settings, config.views, config.pseudo_labels))
    return result


def _pairs_digest(pairs: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(list(pairs)).encode()).hexdigest()


def _fresh(config: Config, source: Source, fabric: Fabric) -> TrainingState:
    settings = config.train
    network = build_network(
        settings.network, dims=config.whitening.dims, seed=settings.seed, side_dims=source.side_dims
    )
    optimizer = build_optimizer(network, settings.optimizer)
    return TrainingState(
        network=network,
        ema=copy_for_ema(network).to(fabric.device) if settings.ema_decay else None,
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, settings.optimizer, steps=settings.steps),
        best=Best(),
        training=build_training(
            settings,
            network,
            num_videos=source.num_videos,
            batch_videos=source.batch_videos if settings.gather else source.batch_videos // fabric.world_size,
            gather=gather_of(fabric) if settings.gather else None,
        ),
    )


def _small_batch(source: Source, settings: TrainConfig) -> list[str]:
    actual = source.batch_videos
    if actual == settings.batch_videos:
        return []
    return [f"batches hold {actual} videos, as there are no more; train.batch_videos is {settings.batch_videos}"]


def _apart(state: TrainingState, settings: TrainConfig) -> list[str]:
    if settings.num_processes == 1 or not settings.gather or not state.training.apart:
        return []
    return [
        f"{settings.num_processes} processes do not train as one with the same batch: {state.training.apart}; take one process "
        "where that matters"
    ]


def _items(source: Source, settings: TrainConfig, first_step: int) -> Iterator[Any]:
    count = settings.accumulate_batches
    loader: DataLoader[Any] = DataLoader(
        source,  # type: ignore[arg-type]  # it has what a map-style data set needs
        batch_size=None,
        sampler=range(first_step * count, settings.steps * count),
        num_workers=settings.data_workers,
        # Not fork: the parent has read Parquet, and Arrow's threads do not survive in a forked child.
        multiprocessing_context="spawn" if settings.data_workers else None,
    )
    return iter(loader)


def _is_patience_over(settings: TrainConfig, best: Best) -> bool:
    return 0 < settings.patience <= best.since


def _validate(validate: Validate, state: TrainingState, step: int, logger: Logger | None) -> None:
    network = state.result
    network.eval()
    with torch.no_grad():
        metrics = validate(network)
    network.train()
    if logger:
        logger.metrics(step, {f"validation/{name}": value for name, value in metrics.items()})
    if metrics["mean"] <= state.best.value:
        state.best = replace(state.best, since=state.best.since + 1)
        return
    weights = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    state.best = Best(step=step, value=metrics["mean"], weights=weights)


def _write_result(folder: Path, state: TrainingState, result: TrainingResult, config_digest: str) -> None:
    network = state.result
    if state.best.weights:
        network.load_state_dict(dict(state.best.weights))
    metadata = {"config_digest": config_digest, "best_step": result.best_step, "steps": result.steps}
    save_network(network, folder / NETWORK, metadata=metadata)
    with write_atomic(folder / RESULT_NAME) as part:
        part.write_text(json.dumps(result.__dict__, indent=1), encoding="utf-8")
