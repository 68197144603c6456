"""How well a teacher's pseudo labels agree with the true times of augmented clips: the frames that two views both show.

    python -m bench.teacher_labels --config configs/measure.yaml [--set KEY=VALUE ...] [--every 3]

Compares the configured teacher with random networks and with plain colours, on the views of every n-th training video that
has four frames or more. The data root must have frames (`hapvr sample`). One thread. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.config_file import read_value
from hapvr.features.extract import teacher_embedder
from hapvr.features.settings import TeacherConfig
from hapvr.features.teacher import load_teacher
from hapvr.features.views import ViewDrawer, plan_cached_views
from hapvr.features.weights import IMAGENET_MEAN, IMAGENET_STD, normalize_pixels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.stages.frames import open_frames
from hapvr.stages.project import Project
from hapvr.storage.manifest import read_manifest, training_shard_keys

Embed = Callable[[Tensor], Tensor]
MIN_FRAMES = 4
COLOUR_CELLS = 8
RANDOM = {"source": "random"}


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--every", type=int, default=3, help="take every n-th training video")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    changes = dict(change.split("=", 1) for change in options.changes)
    overrides = {key: read_value(value, what=key) for key, value in changes.items()}
    project = Project.open(options.config, overrides=overrides)
    embedders = teachers(project)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in embedders}
    for clips, times in drawn_videos(project, every=options.every):
        for name, embed in embedders.items():
            with torch.inference_mode():
                embeddings = embed(clips.flatten(0, 1)).float().cpu().unflatten(0, clips.shape[:2])
            found[name].append(agreement(embeddings, times, project))
    result = {name: summary(rows) for name, rows in found.items()}
    sys.stdout.write(json.dumps({"videos": len(found["configured"]), **result}, indent=2) + "\n")


def teachers(project: Project) -> dict[str, Embed]:
    """Name -> frames [B, 3, H, W] uint8 to embeddings [B, D']."""
    own = project.config.teacher.model_dump()

    def embedder(**changes: Any) -> Embed:
        config = TeacherConfig.model_validate(own | {"precision": "float32", "executor": "torch"} | changes)
        return teacher_embedder(load_teacher(config, crop_px=project.config.backbone.crop_px), "cpu")

    return {
        "configured": embedder(),
        "the same network, random": embedder(weights=RANDOM),
        "resnet18, random": embedder(architecture="resnet18", options={}, weights=RANDOM),
        "colours": colours,
    }


def colours(frames: Tensor) -> Tensor:
    """The mean colour of 8 x 8 cells of each frame, after ImageNet's statistics. Returns [B, 192]."""
    return F.adaptive_avg_pool2d(normalize_pixels(frames, IMAGENET_MEAN, IMAGENET_STD), COLOUR_CELLS).flatten(1)


def drawn_videos(project: Project, *, every: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each chosen video the frames of its views [V, T, 3, H, W] and where they come from [V, T], below 0: nowhere."""
    config = project.config
    for key in training_shard_keys(read_manifest(project.root)):
        with open_frames(project, key) as file:
            drawer = ViewDrawer(file.read, config=config.views, size_px=config.backbone.crop_px)
            plans = plan_cached_views(file.video_ids, config.views)
            for video_id in file.video_ids[::every]:
                views = [view for _, view in map(drawer.draw, plans[video_id])]
                times = torch.stack([view.source_index for view in views])
                if len(times[times >= 0].unique()) >= MIN_FRAMES:
                    yield torch.stack([view.frames for view in views]), times


def agreement(embeddings: Tensor, times: Tensor, project: Project) -> dict[str, float]:
    """Over all pairs of different views of a video: rates of labels of frames of equal and of distant times, and ranks.

    "ranked" is the part of (frame, same frame, frame more than a second away) whose cosines are in that order; 0.5 is chance.
    """
    labels = pseudo_labels(embeddings[:, None], embeddings[None], project.config.pseudo_labels)
    unit = F.normalize(embeddings, dim=-1)
    cosine = torch.einsum("itd,jsd->ijts", unit, unit)
    apart = (times[:, None, :, None] - times[None, :, None, :]).abs()
    real = (times[:, None, :, None] >= 0) & (times[None, :, None, :] >= 0)
    real &= ~torch.eye(len(times), dtype=torch.bool)[:, :, None, None]
    same, distant = real & (apart == 0), real & (apart > 1)
    higher = (cosine[..., :, None] > cosine[..., None, :]) + 0.5 * (cosine[..., :, None] == cosine[..., None, :])
    compared = same[..., :, None] & distant[..., None, :]
    return {
        "same frame labelled positive": float((labels[same] == 1).float().mean()),
        "same frame labelled negative": float((labels[same] == -1).float().mean()),
        "distant frame labelled positive": float((labels[distant] == 1).float().mean()),
        "distant frame labelled negative": float((labels[distant] == -1).float().mean()),
        "ranked": float(higher[compared].float().mean()),
    }


def summary(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Mean over videos and its standard error."""
    return {
        name: [round(statistics.mean(values), 3), round(statistics.stdev(values) / len(values) ** 0.5, 3)]
        for name in rows[0]
        for values in [[row[name] for row in rows if not math.isnan(row[name])]]
    }


if __name__ == "__main__":
    main(sys.argv[1:])
