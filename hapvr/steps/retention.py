"""Removing old trainings that nothing needs any more; `pipelines.monitoring` calls it, and removes old runs of Dagster."""

from __future__ import annotations

import time
from pathlib import Path

from hapvr.search.collection import serving_index
from hapvr.steps.project import Project
from hapvr.steps.training import CURRENT_NAME, MODELS, RUN_KEY, current_key, tracker_of

DAY_S = 86_400.0


def remove_old_trainings(project: Project) -> list[str]:
    """Remove trainings that ended `retention.run_days` ago, with folder, MLflow run and artifacts; returns their keys.

    Those that made a registered version stay, whatever its alias, and so do the current model and that of the index. On a
    server runs are marked as deleted, and `mlflow gc` there frees their space. Raises DataError where no registry answers.
    """
    days, root = project.config.retention.run_days, project.root
    if days is None or not root.list_folders(MODELS):
        return []
    tracker, serving = tracker_of(project), serving_index(root)
    used = {current_key(root) if root.exists(CURRENT_NAME) else "", *Path(serving.model if serving else "").parts}
    old = {run_id: key for run_id, key in tracker.removable(time.time() - days * DAY_S).items() if key not in used}
    for key in filter(RUN_KEY.fullmatch, old.values()):
        if not root.local_path(f"{MODELS}/{key}").is_symlink():
            root.delete_folder(f"{MODELS}/{key}")
    tracker.remove(list(old))
    return list(old.values())
