"""The training loop: Lightning Fabric for devices, precision and DDP; everything else is here to be
read: what trains a network by its family, the optimizer, and its learning rate."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock, Timeout
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.utils.data import DataLoader, Dataset

from hapvr.config import Config, OptimizerConfig, TrainConfig, digest
from hapvr.data.filesystem import DataRoot
from hapvr.errors import ConfigError, DamagedError, DataError, HapvrError
from hapvr.files import write_text
from hapvr.losses.objective import Objective
from hapvr.model.checkpoint import build_network, save_network
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.tca import ContextNetwork
from hapvr.model.vvs import VvsNetwork
from hapvr.networks.weights import state_sha256
from hapvr.provenance import differences
from hapvr.train import run_folder
from hapvr.train.batch import Batch
from hapvr.train.ranks import Ranks, gather
from hapvr.train.run_folder import Logger, TrainingResult
from hapvr.train.sources import SOURCES
from hapvr.train.sources.source import SourceInputs
from hapvr.train.tca import ContrastTraining
from hapvr.train.vvs import SuppressionTraining

Validate = Callable[[VideoNetwork], Mapping[str, float]]


class Trainer:
    """One process of a training up to `train.steps`, which resumes from the newest checkpoint in
    `folder`.

    data: digests of what it reads; a checkpoint of other data is refused. copies: see
    `look_alikes`. validate: network -> metrics, of which "mean" chooses the best weights; without
    it the last ones are the result. open_loggers: called on rank 0 with the first step; its loggers
    get losses, learning rate, gradient norm, clips a second and validation. Raises DataError for
    unusable data.
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
        copies: Mapping[str, str],
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
            root=root,
            shard_keys=tuple(shards),
            config=config,
            folder=folder,
            copies=copies,
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
        )
        self._module, self._fabric_optimizer = fabric.setup(self._training, self._optimizer)
        # of validation; -1: none so far
        self._best: dict[str, Any] = {"step": -1, "value": float("-inf"), "weights": {}}
        self._identity = config.training_identity() | {"data": dict(data)}

    def fit(self) -> TrainingResult:
        """Train, and write the best network into the folder. Raises DataError for unusable
        checkpoints, and HapvrError for a loss that is not finite, and after SIGTERM: it goes on
        from its last checkpoint."""
        settings, fabric = self._settings, self._fabric
        with only_writer(self._folder, fabric), stop_flag() as stop_asked:
            fabric.barrier()  # an orphan may write a checkpoint until rank 0 has the lock
            first_step, messages = self._resume()
            batch_items = self._source.batch_items
            if batch_items != settings.batch_videos:
                messages.append(
                    f"batches hold {batch_items}, all that there are; train.batch_videos is "
                    f"{settings.batch_videos}"
                )
            self._loggers = self._open_loggers(first_step) if fabric.is_global_zero else ()
            for logger, text in itertools.product(self._loggers, messages):
                logger.message(text)
            loader: DataLoader[Any] = DataLoader(
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
            items = iter(loader)  # starts the workers
            log_every = max(
                1, min(20, settings.steps // 100)
            )  # a short training logs a hundred steps, or all
            self._started = time.monotonic()
            for step in range(first_step, settings.steps):
                done = step + 1
                rate = self._optimizer.param_groups[0]["lr"]
                chosen = itertools.islice(items, settings.accumulated_batches)
                values = self._step(step, [self._source.finish(item) for item in chosen])
                is_last = done == settings.steps
                if self._loggers and (done % log_every == 0 or is_last):
                    batches = (done - first_step) * settings.accumulated_batches
                    clips = batches * batch_items * self._source.clips_per_item
                    speed = clips / (time.monotonic() - self._started)
                    numbers = {name: float(value) for name, value in values.items()}
                    for logger in self._loggers:
                        logger.metrics(
                            step, numbers | {"learning_rate": rate, "clips_per_s": speed}
                        )
                validates = done % settings.validate_every_steps == 0 or is_last
                if validates and self._validate:
                    self.validate(step)
                stop = bool(fabric.strategy.reduce_boolean_decision(stop_asked(), all=False))
                if validates or stop:
                    self.save(done)
                if stop and not is_last:
                    raise HapvrError(
                        f"training: stopped after step {done} of {settings.steps}; run it "
                        "again to go on from there"
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
            weights = {
                name: tensor.detach().cpu().clone()
                for name, tensor in self.network.state_dict().items()
            }
            self._best = {"step": step, "value": metrics["mean"], "weights": weights}

    def save(self, step: int) -> None:
        """Write the checkpoint from which step `step` follows; rank 0 alone does."""
        if not self._fabric.is_global_zero:
            return
        stateful: tuple[Any, ...] = self._training, self._optimizer, self._scheduler
        values = dict(
            zip(
                ("training", "optimizer", "scheduler"),
                (one.state_dict() for one in stateful),
                strict=True,
            )
        )
        values |= {"step": step, "best": self._best, "identity": json.dumps(self._identity)}
        run_folder.save_checkpoint(self._folder / run_folder.CHECKPOINTS, values, step=step)

    def _resume(self) -> tuple[int, list[str]]:
        """Restore the newest checkpoint that can be read; returns the first step to do, and the
        faults of newer ones. Raises DataError, which names the file, for a checkpoint of other
        settings or data, and if all are damaged."""
        faults: list[str] = []
        for path in reversed(run_folder.list_checkpoints(self._folder / run_folder.CHECKPOINTS)):
            try:
                values = run_folder.read_checkpoint(path)
            except DamagedError as error:
                faults.append(str(error))
                continue
            found = differences(self._identity, json.loads(values["identity"]))
            found.sort(
                key=lambda text: "network.family" not in text
            )  # another family has other settings, too
            if found:
                raise DataError(
                    f"checkpoint: {path} belongs to a training of other settings or data: "
                    f"{'; '.join(text.removeprefix('settings ') for text in found[:5])}. "
                    f"Use those again, or another run folder"
                )
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
            write_text(self._folder / run_folder.RESULT_NAME, json.dumps(asdict(result), indent=1))
        return result


@contextmanager
def only_writer(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Rank 0 holds a lock on the run's folder, so that an orphan and its retry never write the same
    checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    if not fabric.is_global_zero:
        yield
        return
    try:
        with FileLock(folder / "training.lock", timeout=30):
            yield
    except Timeout:
        raise DataError(
            f"training: another process is training in {folder}; wait for it or stop it (the "
            "lock is training.lock there)"
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


class TrainingModule(nn.Module):
    """How the similarity network trains: regions [b, T, R, D] and labels to the objective's terms.
    Each of several processes compares its own clips with those of all and ranks the video
    similarities of all; the gradients that DDP then averages are those of one process with the
    whole batch."""

    def __init__(self, network: SimilarityNetwork, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """What the objective says of the similarities. Nothing is drawn."""
        first_row = batch.first_row
        own = self.network.embed(batch.regions)
        frame_labels = batch.frame_labels
        if frame_labels is None:  # the objective has no term of frames then
            frame_labels = batch.labels.new_zeros(len(batch.pair_index), 1, 1)
        mask = batch.frame_mask
        own_mask = mask
        if mask is not None:
            if len(own) < len(mask):
                own_mask = mask[first_row : first_row + len(own)]
            real = mask[batch.pair_index[:, 0], :, None] & mask[batch.pair_index[:, 1], None, :]
            frame_labels = frame_labels.masked_fill(~real, 0)
        similarities = self.network.compare(
            own, gather(own), query_mask=own_mask, reference_mask=mask
        )
        return self.objective(
            replace(similarities, video=gather(similarities.video)),
            batch.labels,
            frame_labels,
            batch.pair_index,
            first_row=first_row,
            add_up=lambda value: gather(value.reshape(1)).sum(),
        )


def build_training(
    settings: TrainConfig, network: VideoNetwork, *, num_videos: int, batch_videos: int
) -> nn.Module:
    """What trains a network of its family: called with a batch and its number, it returns the loss
    [] and its terms [] by name.

    Whatever else changes while training, such as a memory bank or a key encoder, is a buffer or a
    submodule, so that it is in the checkpoint and on the device. Random draws are functions of the
    seed and the batch's number, never of torch's global generator, so that a resumed training ends
    as an uninterrupted one. DDP waits for a gradient of every weight, and the gradients that it
    averages over processes are those of one process with the whole batch.

    num_videos: of the training; batch_videos: of a batch. Raises ConfigError for settings that do
    not fit these."""
    if isinstance(network, SimilarityNetwork):
        return TrainingModule(network, Objective(settings.objective))
    if isinstance(network, ContextNetwork):
        return ContrastTraining(network, settings, num_videos=num_videos, batch_videos=batch_videos)
    assert isinstance(network, VvsNetwork)
    return SuppressionTraining(network, settings)


def build_optimizer(network: VideoNetwork, config: OptimizerConfig) -> Optimizer:
    """AdamW over all trained parameters, or Adam with the decay in the gradient. Raises ConfigError
    where there are none."""
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ConfigError(
            "train.network: these settings leave no weight to train; turn one of its parts on"
        )
    kind = AdamW if config.kind == "adamw" else Adam
    return kind(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def build_scheduler(optimizer: Optimizer, config: OptimizerConfig, *, steps: int) -> LRScheduler:
    """Linear warm-up, then cosine decay to a floor (HAP-VR section 4; S2VS 4.3); one `step()` per
    training step. The warm-up starts at a hundredth, as the releases do; the papers give no start.
    A run shorter than the warm-up only warms up."""
    warmup = min(config.warmup_steps, steps)
    decay = CosineAnnealingLR(
        optimizer, T_max=max(1, steps - warmup), eta_min=config.learning_rate * config.floor_rate
    )
    if not warmup:
        return decay
    linear = LinearLR(optimizer, start_factor=0.01, total_iters=warmup)
    return SequentialLR(optimizer, [linear, decay], milestones=[warmup])
