"""The training loop: Lightning Fabric for devices, precision and DDP; everything else is here to be read."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader

from hapvr.config import Config, digest
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.files import write_atomic
from hapvr.model.checkpoint import save_network
from hapvr.model.family import VideoNetwork
from hapvr.networks.weights import state_sha256
from hapvr.provenance import Provenance
from hapvr.train import run_folder
from hapvr.train.batch import STRENGTHS, Batch, BatchSource, CachedViews, OnlineViews, gather_of
from hapvr.train.families import build_network, build_optimizer, build_scheduler, build_training
from hapvr.train.run_folder import Logger, TrainingResult

LOCK_TIMEOUT_S = 30
LOG_EVERY_STEPS = 20
"""At most; a short training logs a hundred steps, or all."""

Validate = Callable[[VideoNetwork], Mapping[str, float]]


class Trainer:
    """One process of a training up to `train.steps`, which resumes from the newest checkpoint in `folder`.

    data: digests of what it reads; a checkpoint of other data is refused. validate: network -> metrics, of which
    "mean" chooses the best weights; without it the last ones are the result. open_loggers: called on rank 0 with the first
    step; its loggers get losses, learning rate, gradient norm, clips a second and validation. Raises DataError for unusable data.
    """

    def __init__(
        self,
        config: Config,
        root: DataRoot,
        shards: Sequence[str],
        *,
        data: Mapping[str, str],
        folder: Path,
        fabric: Fabric,
        validate: Validate | None = None,
        open_loggers: Callable[[int], Sequence[Logger]],
    ) -> None:
        settings = config.train
        self._config, self._settings = config, settings
        self._folder, self._fabric = folder, fabric
        self._validate, self._open_loggers = validate, open_loggers
        self._loggers: Sequence[Logger] = ()
        self._started = 0.0
        self._source = open_source(config, root, shards, fabric)
        self.network = build_network(
            settings.network, dims=self._source.dims, seed=settings.seed, extras_dims=self._source.extras_dims
        )
        self._optimizer = build_optimizer(self.network, settings.optimizer)
        self._scheduler = build_scheduler(self._optimizer, settings.optimizer, steps=settings.steps)
        self._training = build_training(
            settings,
            self.network,
            num_videos=self._source.num_videos,
            batch_videos=self._source.sampler.batch_videos,
            gather=gather_of(fabric),
        )
        self._module, self._fabric_optimizer = fabric.setup(self._training, self._optimizer)
        self._best: dict[str, Any] = {
            "step": -1,
            "value": float("-inf"),
            "weights": {},
        }  # of validation; -1: none so far
        self._identity = {
            "train": settings.identity_fields(),
            "views": config.views.model_dump(mode="json"),
            "pseudo_labels": config.pseudo_labels.model_dump(mode="json"),
            "data": dict(data),
        }

    def fit(self) -> TrainingResult:
        """Train, and write the best network into the folder.

        Raises DataError for unusable checkpoints, and HapvrError for a loss that is not finite, and after SIGTERM: it goes on from
        its last checkpoint.
        """
        settings, fabric = self._settings, self._fabric
        with only_writer(self._folder, fabric), stop_flag() as stop_asked:
            first_step, messages = self._resume()
            if (found := self._source.sampler.batch_videos) != settings.batch_videos:
                messages.append(
                    f"batches hold {found} videos, as there are no more; train.batch_videos is {settings.batch_videos}"
                )
            self._loggers = self._open_loggers(first_step) if fabric.is_global_zero else ()
            for logger, text in itertools.product(self._loggers, messages):
                logger.message(text)
            loader: DataLoader[Any] = DataLoader(
                self._source,
                batch_size=None,
                sampler=range(first_step, settings.steps),
                num_workers=settings.data_workers,
                # Not fork: the parent has read Parquet, and Arrow's threads do not survive in a forked child.
                multiprocessing_context="spawn" if settings.data_workers else None,
            )
            items = iter(loader)  # starts the workers
            log_every = max(1, min(LOG_EVERY_STEPS, settings.steps // 100))
            self._started = time.monotonic()
            for step, item in enumerate(items, start=first_step):
                done, rate = step + 1, self._optimizer.param_groups[0]["lr"]
                values = self._step(step, self._source.finish(item))
                is_last = done == settings.steps
                if self._loggers and (done % log_every == 0 or is_last):
                    clips = (done - first_step) * len(STRENGTHS) * self._source.sampler.batch_videos
                    speed = clips / (time.monotonic() - self._started)
                    numbers = {name: float(value) for name, value in values.items()}
                    for logger in self._loggers:
                        logger.metrics(step, numbers | {"learning_rate": rate, "clips_per_s": speed})
                validates = done % settings.validate_every_steps == 0 or is_last
                if validates and self._validate:
                    self.validate(step)
                stop = bool(fabric.strategy.reduce_boolean_decision(stop_asked(), all=False))
                if validates or stop:
                    self.save(done)
                if stop and not is_last:
                    raise HapvrError(
                        f"training: stopped after step {done} of {settings.steps}; run it again to go on from there"
                    )
            return self._finish(first_step)

    def validate(self, step: int) -> None:
        """Validate the weights after a step, and keep them if they are the best so far."""
        assert self._validate is not None
        self.network.eval()
        with torch.no_grad():
            metrics = self._validate(self.network)
        self.network.train()
        for logger in self._loggers:
            logger.metrics(step, {f"validation/{name}": value for name, value in metrics.items()})
        if metrics["mean"] > self._best["value"]:
            weights = {name: tensor.detach().cpu().clone() for name, tensor in self.network.state_dict().items()}
            self._best = {"step": step, "value": metrics["mean"], "weights": weights}

    def save(self, step: int) -> None:
        """Write the checkpoint from which step `step` follows; rank 0 alone does."""
        if not self._fabric.is_global_zero:
            return
        values = {
            "step": step,
            "training": self._training.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "best": self._best,
            "identity": json.dumps(self._identity),
        }
        run_folder.save_checkpoint(self._folder / run_folder.CHECKPOINTS, values, step=step)

    def _resume(self) -> tuple[int, list[str]]:
        """Restore the newest checkpoint that can be read; returns the first step to do, and the faults of newer ones.

        Raises DataError, which names the file, for a checkpoint of other settings or data, and if all are damaged.
        """
        faults: list[str] = []
        for path in reversed(run_folder.list_checkpoints(self._folder / run_folder.CHECKPOINTS)):
            try:
                values = run_folder.read_checkpoint(path)
            except DamagedError as error:
                faults.append(str(error))
                continue
            found = Provenance("training", json.loads(values["identity"]))
            differences = Provenance("training", self._identity).differences(found)
            differences.sort(key=lambda text: "network.family" not in text)  # another family has other settings, too
            if differences:
                raise DataError(
                    f"checkpoint: {path} belongs to a training of other settings or data: "
                    f"{'; '.join(text.removeprefix('settings ') for text in differences[:5])}. "
                    f"Use those again, or another run folder"
                )
            self._training.load_state_dict(values["training"])
            self._optimizer.load_state_dict(values["optimizer"])
            self._scheduler.load_state_dict(values["scheduler"])
            self._best = values["best"]
            return values["step"], faults
        if faults:
            raise DataError(
                f"{faults[0]}; so are all {len(faults)} in {self._folder / run_folder.CHECKPOINTS}; delete that folder "
                "to train from the beginning"
            )
        return 0, []

    def _step(self, step: int, batch: Batch) -> dict[str, Tensor]:
        """Change the weights once; returns the losses and the norm of the gradient, [] each."""
        batch = self._fabric.to_device(batch)
        total, terms = self._module(replace(batch, regions=batch.regions.float()), step)
        if not torch.isfinite(total):
            raise HapvrError(
                f"training: step {step}: the loss is {float(total.detach())}; the videos of its batch are "
                f"{', '.join(dict.fromkeys(batch.video_ids))}. Lower train.optimizer.learning_rate"
            )
        self._fabric.backward(total)
        norm = self._fabric.clip_gradients(  # only measures it
            self._module, self._fabric_optimizer, max_norm=float("inf"), error_if_nonfinite=False
        )
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad()
        self._scheduler.step()
        losses = {f"loss/{name}": value.detach() for name, value in {"total": total, **terms}.items()}
        return losses | {"gradient_norm": total.new_zeros(()) if norm is None else norm}

    def _finish(self, first_step: int) -> TrainingResult:
        """Write the best network and the result."""
        best, weights, settings = self._best["step"], self._best["weights"], self._settings
        result = TrainingResult(
            steps=settings.steps,
            first_step=first_step,
            best_step=best,
            best_value=self._best["value"] if best >= 0 else 0.0,
            num_videos=self._source.num_videos,
            seconds=time.monotonic() - self._started,
            weights_sha256=state_sha256(weights or dict(self.network.state_dict())),
        )
        if self._fabric.is_global_zero:
            if weights:
                self.network.load_state_dict(weights)
            config_digest = digest(settings, self._config.views, self._config.pseudo_labels)
            metadata = {"config_digest": config_digest, "best_step": best, "steps": settings.steps}
            save_network(self.network, self._folder / run_folder.NETWORK, metadata=metadata)
            with write_atomic(self._folder / run_folder.RESULT_NAME) as part:
                part.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
        return result


def open_source(config: Config, root: DataRoot, shards: Sequence[str], fabric: Fabric) -> BatchSource:
    """The source of batches that `train.source` names. Raises DataError for data that is missing or does not belong together."""
    source = CachedViews if config.train.source == "cached_views" else OnlineViews
    return source(root, shards, config, fabric)


@contextmanager
def only_writer(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Rank 0 holds a lock on the run's folder, so that an orphan and its retry never write the same checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    if not fabric.is_global_zero:
        yield
        return
    try:
        with FileLock(folder / "training.lock", timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise DataError(
            f"training: another process is training in {folder}; wait for it or stop it (the lock is training.lock there)"
        ) from None


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGTERM has arrived; the loop calls it between steps."""
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
