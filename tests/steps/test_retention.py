"""Which trainings are removed when they are old."""

import json
import time
from pathlib import Path

import pytest

from hapvr.registry.champions import promote
from hapvr.registry.versions import register
from hapvr.steps.project import Project
from hapvr.steps.training import remove_old_trainings, tracker_of
from tests.registry.empty_store import new_store
from tests.steps.data_projects import folder_settings, open_project

pytestmark = pytest.mark.slow
DAY_MS = 86_400_000


def test_old_trainings_without_a_version_are_removed_with_all_their_files(tmp_path: Path) -> None:
    """Failed, unregistered and deleted ones. Those of the champion, the one before and any other
    version stay, and so do the current model, one that runs, and one that ended a day ago."""
    project = open_project(
        tmp_path, folder_settings(tmp_path, tmp_path / "data", retention={"run_days": 30})
    )
    assert remove_old_trainings(project) == []
    new_store(project.root.local_path("mlflow"))
    keys = ("failed", "deleted", "unregistered", "current", "first", "champion", "other")
    runs = {key: add(project, key) for key in keys}
    tracker_of(project).client.delete_run(
        again := add(project, "recent")
    )  # its key is used once more
    runs |= {
        "recent": add(project, "recent", days=1),
        "running": add(project, "running", days=None),
    }
    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    tracker.client.delete_run(runs["deleted"])
    source = (tmp_path / "data").as_uri()
    versions = {
        key: register(tracker, name, run_id=runs[key], model_uri=source, target=None, tags={})
        for key in ("first", "champion", "other")
    }
    for key in ("first", "champion"):
        promote(tracker.client, name, versions[key], reason="test")
    project.root.local_path("models/current.json").write_text(json.dumps({"key": "current"}))

    always = project.config.retention.model_copy(update={"run_days": None})
    kept = project.config.model_copy(update={"retention": always})
    assert remove_old_trainings(Project(kept, project.root, project.folder)) == []
    assert sorted(remove_old_trainings(project)) == ["deleted", "failed", "unregistered"]
    left = {"current", "first", "champion", "other", "recent", "running"}
    assert {run.info.run_id for run in tracker.runs()} == {again, *(runs[key] for key in left)}
    assert set(project.root.list_folders("models")) == left
    run_ids = {
        path.parent.parent.name
        for path in project.root.local_path("mlflow/artifacts").rglob("note.txt")
    }
    assert run_ids == {again, *(runs[key] for key in left)}
    assert remove_old_trainings(project) == []


def add(project: Project, key: str, *, days: float | None = 40) -> str:
    """A run with an artifact, and its folder. days: since its end; None: it runs."""
    tracker = tracker_of(project)
    run_id = tracker.start(key, name=key, params={}, tags={})
    tracker.client.log_text(run_id, "something", "note.txt")
    folder = project.root.local_path(f"models/{key}/checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "last").write_bytes(b"weights")
    if days is not None:
        tracker.client.set_terminated(
            run_id, status="FAILED", end_time=int(time.time() * 1000 - days * DAY_MS)
        )

    return run_id
