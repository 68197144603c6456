"""Features of whole videos, and what is trained on."""

from collections.abc import Mapping
from typing import Any

from hapvr.chain.look import Look
from hapvr.chain.step import ShardStep, Step, StepStatus, status_of
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project


class Whitening(Step):
    """Step 4."""

    name = "whitening"
    job = "whiten"
    does = "fits PCA whitening on regions of training frames, once"
    inputs = ("frames",)
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_whitening`."""
        from hapvr.steps.whitening import make_whitening

        return make_whitening(project, progress=progress, **options)

    def status(self, look: Look) -> StepStatus:
        """Whether there is one."""
        return status_of(self.name, [look.project.root.exists("whitening/whitening.json")])


class Features(ShardStep):
    """Step 5."""

    name = "features"
    job = "extract"
    does = "computes region features [T, 9, D] of whole videos"
    inputs = ("frames", "whitening")
    shards = "all"
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_features`."""
        from hapvr.steps.features import make_features

        return make_features(project, key, progress=progress, **options)


class ViewStep(ShardStep):
    """A step that makes augmented clips, where `train.source` reads them."""

    def unused_reason(self, project: Project) -> str:
        """That the training reads nothing of it, and how to make it nevertheless; "" where it
        does."""
        settings = project.config.train
        if self.name in settings.view_steps:
            return ""
        return f"train.source {settings.source} does not read it; `hapvr run {self.name}` makes it"

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """As any step of shards; None where the training reads nothing of it."""
        if self.unused_reason(look.project):
            return None
        return super().lacks(look)

    def status(self, look: Look) -> StepStatus:
        """As any step of shards; nothing where the training reads nothing of it."""
        if self.unused_reason(look.project):
            return StepStatus(self.name, 0, 0)
        return super().status(look)


class TrainingViews(ViewStep):
    """Step 6."""

    name = "training_views"
    job = "extract"
    does = "computes features of weakly and strongly augmented clips"
    inputs = ("frames", "whitening")
    shards = "training"
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_training_views`."""
        from hapvr.steps.views import make_training_views

        return make_training_views(project, key, progress=progress, **options)


class PseudoLabels(ViewStep):
    """Step 7."""

    name = "pseudo_labels"
    job = "extract"
    does = "computes the teacher's embeddings of the same clips, which label their frames"
    inputs = ("frames",)
    shards = "training"
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_pseudo_labels`."""
        from hapvr.steps.views import make_pseudo_labels

        return make_pseudo_labels(project, key, progress=progress, **options)
