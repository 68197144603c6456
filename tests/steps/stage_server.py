"""Runs stages on request, each in a fork of this process, so that a test can kill them without paying for imports.

Reads lines of JSON {"config": path, "stage": name} from standard input and answers each with the fork's process id. The next,
empty line asks for its exit status. Until then nobody else can get the process id, even if the fork has ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import timm  # noqa: F401 the stages import it in the fork otherwise, which takes most of their time
import torch

from hapvr.data.manifest import shard_keys
from hapvr.steps import search_index
from hapvr.steps.features import make_features
from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.search_model import search_model
from hapvr.steps.sources import make_manifest
from hapvr.steps.videos import make_videos
from hapvr.steps.whitening import make_whitening

PER_SHARD = {
    "videos": make_videos,
    "frames": make_frames,
    "features": make_features,
}


def run(config: Path, stage: str) -> None:
    """One stage on all shards; `index` with the network beside the configuration."""
    project = Project.open(config, folder=config.parent)
    if stage == "manifest":
        make_manifest(project)
    elif stage == "whitening":
        make_whitening(project)
    elif stage == "index":
        search_index.MAX_FROZEN_SIMILARITY = 0.5 if config.stem == "fewer" else 1.0
        search_index.update_index(project, search_model(project, str(config.parent / "network-0")))
    else:
        for key in shard_keys(project.root):
            PER_SHARD[stage](project, key)


def main() -> None:
    """Serves until standard input ends."""
    torch.set_num_threads(1)
    # Workers whose stage was killed say so on standard output; the answers must not be mixed with that.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                run(Path(request["config"]), request["stage"])
            except BaseException:  # the child must not go on in the loop; its exit status tells the test
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, file=answers, flush=True)
        sys.stdin.readline()
        print(os.waitpid(child, 0)[1], file=answers, flush=True)


if __name__ == "__main__":
    main()
