"""The data of a project, made by the library's own steps, with each network opened once. Steps are
imported where they are run, since xdist's controller imports this module and runs no test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hapvr.steps.project import Project


def make_feature_data(project: Project) -> list[str]:
    """All stages up to features; returns the shards of the training split."""
    from hapvr.data.manifest import training_shard_keys
    from hapvr.steps.features import make_features
    from hapvr.steps.frames import make_frames
    from hapvr.steps.video_manifest import make_manifest
    from hapvr.steps.videos import make_videos
    from hapvr.steps.whitening import make_whitening

    manifest = make_manifest(project)
    for key in manifest.shards:
        make_videos(project, key)
        make_frames(project, key)

    with networks_opened_once():
        make_whitening(project)
        for key in manifest.shards:
            make_features(project, key)

    return training_shard_keys(project.root)


def make_data(project: Project) -> None:
    """All stages up to pseudo labels."""
    from hapvr.steps.views import make_views_and_labels

    training_shards = make_feature_data(project)
    with networks_opened_once():
        for key in training_shards:
            make_views_and_labels(project, key)


@contextmanager
def networks_opened_once() -> Iterator[None]:
    """Steps share the frozen networks, in place of opening them for each shard: seconds of drawing
    and trying out random weights."""
    from hapvr.steps import features, views, whitening

    with pytest.MonkeyPatch.context() as patch:
        for module, opener in (
            (features, "open_encoder"),
            (whitening, "open_encoder"),
            (views, "load_teacher"),
        ):
            patch.setattr(module, opener, opened_once(getattr(module, opener)))

        yield


def opened_once(opener: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps what `opener` gave for the same arguments."""
    opened: dict[str, Any] = {}

    def kept(*arguments: Any, **options: Any) -> Any:
        key = repr((arguments, options))
        if key not in opened:
            opened[key] = opener(*arguments, **options)
        return opened[key]

    return kept
