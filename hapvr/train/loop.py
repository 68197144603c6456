"""The training loop: Lightning Fabric for devices, precision and DDP; everything else is here to be
read."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hapvr.config import Config, digest
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError, HapvrError
from hapvr.files import write_text
from hapvr.model.checkpoint import build_network, save_network
from hapvr.model.family import VideoNetwork
from hapvr.networks.weights import state_sha256
from hapvr.provenance import differences
from hapvr.train import run_folder
from hapvr.train.batch import Batch
from hapvr.train.families import build_training
from hapvr.train.optimizer import build_optimizer, build_scheduler
from hapvr.train.ranks import Ranks
from hapvr.train.run_folder import Logger, TrainingResult
from hapvr.train.sources import SOURCES
from hapvr.train.sources.source import SourceInputs
from hapvr.train.tca import ContrastTraining

Validate = Callable[[VideoNetwork], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingData:
    """What a training reads."""

    root: DataRoot
    shards: Sequence[str]
    """The shards of the training split."""
    digests: Mapping[str, str]
    """Digests of everything that is read; a checkpoint of other data is refused."""
    copies: Mapping[str, str]
    """See `hapvr.train.sampler.look_alikes`."""


class Trainer:
    """One process of a training up to `train.steps`, which resumes from the newest checkpoint in
    `folder`.

    validate: network -> metrics, of which "mean" chooses the best weights; without `validate` the
    last weights are the result.
    open_loggers: called on rank 0 with the first step; its loggers get losses, learning rate,
    gradient norm, clips a second and validation.

    Raises:
        DataError: unusable data."""

    def __init__(
        self,
        config: Config,
        data: TrainingData,
        *,
        folder: Path,
        fabric: Fabric,
        validate: Validate | None = None,
        open_loggers: Callable[[int], Sequence[Logger]],
    ) -> None:
        settings = config.train
        self._config = config
        self._settings = settings
        self._folder = folder
        self._fabric = fabric
        self._validate = validate
        self._open_loggers = open_loggers
        self._loggers: Sequence[Logger] = ()
        self._started = 0.0
        inputs = SourceInputs(
            root=data.root,
            shard_keys=tuple(data.shards),
            config=config,
            folder=folder,
            copies=data.copies,
            ranks=Ranks(fabric.global_rank, fabric.world_size, fabric.device),
        )
        self._source = SOURCES[settings.source](inputs)
        self.network = build_network(
            settings.network,
            dims=self._source.dims,
            seed=settings.seed,
            extras_dims=self._source.extras_dims,
        )
        self._optimizer = build_optimizer(self.network, settings.optimizer)
        self._scheduler = build_scheduler(self._optimizer, settings.optimizer, steps=settings.steps)
        self._training = build_training(
            settings,
            self.network,
            num_videos=self._source.num_keys,
            batch_videos=self._source.batch_items,
            clips_per_item=self._source.clips_per_item,
        )
        self._module, self._fabric_optimizer = fabric.setup(self._training, self._optimizer)
        # of validation; -1: none so far
        self._best: dict[str, Any] = {"step": -1, "value": float("-inf"), "weights": {}}
        self._identity = config.training_identity() | {"data": dict(data.digests)}

    def fit(self) -> TrainingResult:
        """Train, and write the best network into the folder.

        Raises:
            DataError: unusable checkpoints.
            HapvrError: a loss that is not finite, and SIGTERM, after which the training can be
                resumed from its last checkpoint."""
        settings = self._settings
        fabric = self._fabric
        with self._only_writer(), stop_flag() as stop_asked:
            fabric.barrier()  # an orphan may write a checkpoint until rank 0 has the lock
            first_step, messages = self._resume()
            self._begin_log(first_step, messages + self._notices())
            items = iter(self._loader(first_step))  # starts the workers
            self._started = time.monotonic()
            for step in range(first_step, settings.steps):
                is_last = step + 1 == settings.steps
                learning_rate = self._optimizer.param_groups[0]["lr"]
                read = itertools.islice(items, settings.accumulated_batches)
                values = self._step(step, [self._source.finish(item) for item in read])
                if is_last or (step + 1) % self._log_every == 0:
                    self._log(step, first_step, values, learning_rate)

                is_checked = is_last or (step + 1) % settings.validate_every_steps == 0
                if is_checked and self._validate:
                    self.validate(step)
                stop = bool(fabric.strategy.reduce_boolean_decision(stop_asked(), all=False))
                if is_checked or stop:
                    self.save(step + 1)
                if stop and not is_last:
                    raise HapvrError(
                        f"training: stopped after step {step + 1} of {settings.steps}; run it "
                        "again to go on from there"
                    )

            return self._finish(first_step)

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Rank 0 holds a lock on the run's folder, so that an orphan and its retry never write the
        same checkpoints."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._fabric.is_global_zero:
            yield
            return

        with run_folder.writing_alone(self._folder):
            yield

    def _notices(self) -> list[str]:
        """What the log of the training should tell its readers."""
        settings = self._settings
        if self._source.batch_items == settings.batch_videos:
            return []
        return [
            f"batches hold all {self._source.batch_items} videos or pairs that there are; "
            f"train.batch_videos is {settings.batch_videos}"
        ]

    def _loader(self, first_step: int) -> DataLoader[Any]:
        """The loader of the batches from a step on, in order."""
        settings = self._settings
        return DataLoader(
            cast("Dataset[Any]", self._source),
            batch_size=None,
            sampler=range(
                first_step * settings.accumulated_batches,
                settings.steps * settings.accumulated_batches,
            ),
            num_workers=settings.data_workers,
            # Not fork: the parent has read Parquet, and Arrow's threads do not survive in a
            # forked child.
            multiprocessing_context="spawn" if settings.data_workers else None,
        )

    @property
    def _log_every(self) -> int:
        """How often to log: a short training logs a hundred steps, or all."""
        return max(1, min(20, self._settings.steps // 100))

    def _begin_log(self, first_step: int, messages: Sequence[str]) -> None:
        """Open the loggers on rank 0, and tell them the messages."""
        if not self._fabric.is_global_zero:
            return
        self._loggers = self._open_loggers(first_step)
        for logger in self._loggers:
            for message in messages:
                logger.message(message)

    def _log(
        self, step: int, first_step: int, values: Mapping[str, Tensor], learning_rate: float
    ) -> None:
        """Log losses and speed after a step."""
        if not self._loggers:
            return
        num_batches = (step + 1 - first_step) * self._settings.accumulated_batches
        num_clips = num_batches * self._source.batch_items * self._source.clips_per_item
        numbers = {name: float(value) for name, value in values.items()}
        numbers["learning_rate"] = learning_rate
        numbers["clips_per_s"] = num_clips / (time.monotonic() - self._started)
        for logger in self._loggers:
            logger.metrics(step, numbers)

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
            weights = {
                name: tensor.detach().cpu().clone()
                for name, tensor in self.network.state_dict().items()
            }
            self._best = {"step": step, "value": metrics["mean"], "weights": weights}

    def save(self, step: int) -> None:
        """Write the checkpoint from which the training goes on with step `step`; only rank 0
        does."""
        if not self._fabric.is_global_zero:
            return
        values = {
            "training": self._training.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "step": step,
            "best": self._best,
            "identity": json.dumps(self._identity),
        }
        run_folder.save_checkpoint(self._folder / run_folder.CHECKPOINTS, values, step=step)

    def _resume(self) -> tuple[int, list[str]]:
        """Restore the newest checkpoint that can be read; returns the first step to do, and the
        faults of newer checkpoints. Raises DataError, which names the file, for a checkpoint of
        other settings or data, and if all are damaged."""
        faults: list[str] = []
        for path in reversed(run_folder.list_checkpoints(self._folder / run_folder.CHECKPOINTS)):
            try:
                values = run_folder.read_checkpoint(path)
            except DamagedError as error:
                faults.append(str(error))
                continue

            self._require_own(path, values)
            self._training.load_state_dict(values["training"])
            self._optimizer.load_state_dict(values["optimizer"])
            self._scheduler.load_state_dict(values["scheduler"])
            self._best = values["best"]
            return values["step"], faults

        if faults:
            raise DataError(
                f"{faults[0]}; so are all {len(faults)} in "
                f"{self._folder / run_folder.CHECKPOINTS}; delete that folder "
                "to train from the beginning"
            )

        return 0, []

    def _require_own(self, path: Path, values: Mapping[str, Any]) -> None:
        """Raise DataError for a checkpoint of other settings or data."""
        changes = differences(self._identity, json.loads(values["identity"]))
        # Another family has other settings, too, so the family is named first.
        changes.sort(key=lambda text: "network.family" not in text)
        if changes:
            raise DataError(
                f"checkpoint: {path} belongs to a training of other settings or data: "
                f"{'; '.join(text.removeprefix('settings ') for text in changes[:5])}. "
                f"Use those again, or another run folder"
            )

    def _step(self, step: int, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Change the weights once, by the mean gradient of the batches; returns the mean losses and
        the norm of the gradient, [] each."""
        on_device = [self._fabric.to_device(batch) for batch in batches]
        first = step * len(batches)
        if isinstance(self._training, ContrastTraining):
            with self._fabric.autocast():
                self._training.begin_step(on_device, first)

        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(on_device, start=first):
            terms = self._backward(step, number, batch, share=1 / len(batches))
            for name, value in terms.items():
                sums[name] = sums.get(name, 0) + value / len(batches)

        norm = self._fabric.clip_gradients(  # only measures it
            self._module, self._fabric_optimizer, max_norm=float("inf"), error_if_nonfinite=False
        )
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad()
        self._scheduler.step()
        losses = {f"loss/{name}": value for name, value in sums.items()}
        return losses | {"gradient_norm": torch.zeros(()) if norm is None else norm}

    def _backward(self, step: int, number: int, batch: Batch, *, share: float) -> dict[str, Tensor]:
        """Add `share` of the gradient of batch `number`; returns its losses, [] each."""
        total, terms = self._module(replace(batch, regions=batch.regions.float()), number)
        if not torch.isfinite(total):
            raise HapvrError(
                f"training: step {step}: the loss is {float(total.detach())}; the videos of "
                "its batch are "
                f"{', '.join(dict.fromkeys(batch.video_ids))}. Lower train.optimizer.learning_rate"
            )

        self._fabric.backward(total * share if share < 1 else total)
        return {name: value.detach() for name, value in {"total": total, **terms}.items()}

    def _finish(self, first_step: int) -> TrainingResult:
        """Write the best network and the result."""
        best = self._best["step"]
        weights = self._best["weights"]
        settings = self._settings
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
            write_text(self._folder / run_folder.RESULT_NAME, json.dumps(asdict(result), indent=1))

        return result


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGTERM has arrived; the loop calls it between steps."""
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
