"""Stages that are killed at any moment: processes of their own, forked from a server that has
loaded their libraries."""

import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import timm  # noqa: F401 the stages import it in the fork otherwise, which takes most of their time
import torch

from hapvr.data.manifest import shard_keys
from hapvr.search import descriptors
from hapvr.steps import search_index
from hapvr.steps.features import make_features
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.search_model import search_model
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.steps.whitening import make_whitening
from hapvr.video.kept_workers import end_idle_workers
from tests.forked import forking

KILLS = 4
KILLS_IN_A_ROW = 2


def run(config: Path, stage: str) -> None:
    """One stage on all shards; `index` with the network beside the configuration."""
    torch.set_num_threads(1)
    project = Project.open(config, folder=config.parent)
    if stage == "index":
        descriptors.MAX_FROZEN_SIMILARITY = 0.5 if config.stem == "fewer" else 1.0
        search_index.update_index(project, search_model(project, str(config.parent / "network-0")))
    elif stage in ("manifest", "whitening"):
        {"manifest": make_manifest, "whitening": make_whitening}[stage](project)
    else:
        for key in shard_keys(project.root):
            {"videos": make_videos, "frames": make_frames, "features": make_features}[stage](
                project, key
            )

    end_idle_workers()  # which a process of `multiprocessing` would wait for, a minute long


def start(config: Path, stage: str) -> BaseProcess:
    """Begin a stage."""
    process = forking().Process(target=run, args=(config, stage))
    process.start()
    return process


def finish(config: Path, stage: str) -> float:
    """Run a stage to its end; returns the seconds."""
    began = time.monotonic()
    process = start(config, stage)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - began


def kill_after(process: BaseProcess, seconds: float) -> None:
    """SIGKILL after so long."""
    time.sleep(seconds)
    process.kill()


def kill_often(
    what: Callable[[], tuple[Path, str]],
    *,
    kill: Callable[[BaseProcess, int], None],
    after_kill: Callable[[], None] = lambda: None,
    after_end: Callable[[], None],
) -> None:
    """Start and kill a stage until KILLS kills came before its end, then let it end.

    what: configuration and name of the stage to start next. kill: gets the process and the number
    of the try. after_end: is called whenever the stage has come to its end, after KILLS_IN_A_ROW
    kills at the latest."""
    kills = number = 0
    while kills < KILLS:
        number += 1
        process = start(*what())
        kill(process, number)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        after_kill()
        if process.exitcode == 0 or kills % KILLS_IN_A_ROW == 0:
            finish(*what())
            after_end()

    finish(*what())
