"""A training, its scores, and the version that is made of it."""

from typing import Any

from hapvr.chain.look import Look
from hapvr.chain.step import Step, StepStatus, status_of
from hapvr.progress import Progress, no_progress
from hapvr.steps.model_places import CURRENT_NAME, MODELS, current_key
from hapvr.steps.project import Project


class SimilarityModel(Step):
    """Step 8."""

    name = "similarity_model"
    job = "retrain"
    does = "trains the network in a process of its own, tracked as one MLflow run"
    inputs = ("training_views", "pseudo_labels", "features")
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `train_model`."""
        from hapvr.steps.training import train_model

        return train_model(project, progress=progress, **options)

    def status(self, look: Look) -> StepStatus:
        """Whether a model was trained."""
        return status_of(self.name, [look.project.root.exists(CURRENT_NAME)])


class BenchmarkScores(Step):
    """Step 9."""

    name = "benchmark_scores"
    job = "retrain"
    does = "scores every benchmark with the trained model and the untrained baseline"
    inputs = ("similarity_model", "features")
    gpu = True

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `score_benchmarks`."""
        from hapvr.steps.evaluation import score_benchmarks

        return score_benchmarks(project, progress=progress, **options)

    def status(self, look: Look) -> StepStatus:
        """How many benchmarks the trained model has scores of."""
        root = look.project.root
        run = f"{MODELS}/{current_key(root)}/benchmarks" if root.exists(CURRENT_NAME) else MODELS
        names = look.project.config.evaluation.benchmarks
        present = [root.exists(f"{run}/{name}/scores.json") for name in names]
        return status_of(self.name, present)


class RegisteredModel(Step):
    """Step 10."""

    name = "registered_model"
    job = "retrain"
    does = "registers a calibrated version, which the gate may promote to champion"
    inputs = ("similarity_model", "benchmark_scores")

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """See `make_registered_model`."""
        from hapvr.steps.registration import make_registered_model

        return make_registered_model(project, progress=progress, **options)

    def status(self, look: Look) -> StepStatus:
        """Whether there is a champion."""
        return status_of(self.name, [look.model is not None])
