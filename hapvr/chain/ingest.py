"""Which videos there are, the files themselves, and their sampled frames."""

from collections.abc import Mapping
from typing import Any

from hapvr.chain.look import Look
from hapvr.chain.step import ShardStep, Step, StepStatus, status_of
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project


class VideoManifest(Step):
    """Step 1."""

    name = "video_manifest"
    job = "find_videos"
    does = "lists the videos of all sources in shards; it only grows"

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_manifest`."""
        from hapvr.steps.video_manifest import make_manifest

        return make_manifest(project, progress=progress, **options)

    def status(self, look: Look) -> StepStatus:
        """How many shards there are."""
        return status_of(self.name, [True] * len(look.keys))


class Videos(ShardStep):
    """Step 2."""

    name = "videos"
    job = "ingest"
    does = "fetches remote files and inspects every file"
    inputs = ("video_manifest",)
    shards = "all"

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_videos`."""
        from hapvr.steps.videos import make_videos

        return make_videos(project, key, progress=progress, **options)

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Shards with files that were replaced."""
        return look.changed_videos


class Frames(ShardStep):
    """Step 3."""

    name = "frames"
    job = "ingest"
    does = "samples one frame per second, in processes that are killed when they hang"
    inputs = ("videos",)
    shards = "all"

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_frames`."""
        from hapvr.steps.frames import make_frames

        return make_frames(project, key, progress=progress, **options)
