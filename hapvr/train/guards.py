"""Guards around the loop: one writer per run folder, stopping on request, and errors that say what to do."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch
from filelock import FileLock, Timeout

from hapvr.errors import DataError, HapvrError
from hapvr.settings import first_line
from hapvr.train.batch import Batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class TrainingStoppedError(HapvrError):
    """Training was asked to stop. It continues from its last checkpoint."""


class NotFiniteError(HapvrError):
    """The loss became NaN or infinite."""


class OutOfMemoryError(HapvrError):
    """A step needs more memory than there is."""


class CompilerError(HapvrError):
    """torch.compile does not work here."""


@contextmanager
def only_writer(folder: Path, fabric: Fabric) -> Iterator[None]:
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
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGTERM has arrived; the loop calls it between steps."""
    asked = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def actionable_errors(step: int, *, num_videos: int, compiled: bool) -> Iterator[None]:
    """Turns errors of torch into OutOfMemoryError or CompilerError, which say what to set."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"training: step {step}: out of memory with batches of {num_videos} videos ({first_line(error)}). "
                f"Lower train.batch_videos (train.accumulate_batches makes up for it) or views.num_frames; on a GPU "
                f"set train.precision to bf16-mixed"
            ) from error
        if compiled and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise CompilerError(
                f"training: torch.compile failed ({first_line(error)}). Install a C++ compiler (g++), "
                f"on a GPU Triton, or set train.compile to false"
            ) from error
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on a GPU or in torch or Python on the processor."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in ("not enough memory", "can't allocate memory", "Cannot allocate memory")
    )


def not_finite(reason: str, step: int, batch: Batch, folder: Path) -> NotFiniteError:
    """Makes the error, and writes a file that lists the clips of the batch."""
    dump = folder / f"not-finite-{step:08d}.json"
    dump.write_text(
        json.dumps({"step": step, "video_ids": batch.video_ids, "view_index": batch.view_index.tolist()}, indent=1),
        encoding="utf-8",
    )
    return NotFiniteError(
        f"training: step {step}: {reason}; the videos of its batch are listed in {dump}. "
        f"Lower train.optimizer.learning_rate, or set train.optimizer.gradient_clip_norm"
    )
