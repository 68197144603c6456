"""What sensors and schedules look at: sources, and training data that the model has not seen."""

import os
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hapvr.data.features import STAGE
from hapvr.errors import DataError
from hapvr.networks.whitening import load_whitening, save_whitening, whitening_provenance
from hapvr.steps.pending_training import pending_data
from hapvr.steps.project import Project
from hapvr.steps.sources import snapshot_sources
from hapvr.steps.training import prepare_training
from hapvr.train.run_folder import read_record
from tests.conftest import small_settings, write_clip, write_settings
from tests.steps.search_projects import copied
from tests.train.runs import with_train


@pytest.fixture
def project(small_project: Project, tmp_path: Path) -> Project:
    """A copy whose features may be taken away, without models."""
    project = copied(small_project.folder, tmp_path)
    project.root.delete_folder("models")
    return project


def test_a_model_has_seen_what_its_training_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a training all usable videos are pending; after it none, unless settings change or
    shards come."""
    before = pending_data(project)
    assert not before.is_empty
    assert before.num_videos > 0
    monkeypatch.setattr(
        "hapvr.steps.training.copies_of", Mock(side_effect=[{"a": "1"}, {"b": "2"}])
    )
    run = prepare_training(project, "seen", tags={})
    project.root.write_json("models/current.json", {"key": run.key})
    after = pending_data(project)
    assert after.shards == ()
    assert after.num_videos == 0
    assert after.is_empty
    seeded = replace(project, config=with_train(project, seed=5))
    assert not pending_data(seeded).is_empty
    (run.folder / "result.json").write_text("{}")
    with pytest.raises(DataError, match=r"seen has other settings or data: settings train\.seed"):
        prepare_training(seeded, run.key, tags={})
    prepare_training(project, run.key, tags={})
    assert read_record(run.folder)["copies"] == {"a": "1"}  # those that it began with
    provenance = whitening_provenance(project.root)
    own = load_whitening(project.root)
    assert provenance is not None
    save_whitening(project.root, replace(own, mean=own.mean + 1), provenance)
    assert not pending_data(project).is_empty
    save_whitening(project.root, own, provenance)
    project.root.write_json(
        f"models/{run.key}/run.json", read_record(run.folder) | {"shards": before.shards[1:]}
    )
    assert pending_data(project).shards == before.shards[:1]
    project.root.local_path(f"models/{run.key}/run.json").write_text("")
    with pytest.warns(UserWarning, match=r"run\.json is damaged .* counts as no model"):
        assert not pending_data(project).is_empty


def test_shards_of_the_benchmarks_are_awaited(project: Project) -> None:
    """Validation and test; those of the training split are not, they only count once they have
    features."""
    assert pending_data(project).awaited == ()
    for key in ("own-test-00000", "own-validation-00000", "own-train-00000"):
        project.root.delete(project.shard(STAGE, key).index_name)
    pending = pending_data(project)
    assert pending.awaited == ("own-test-00000", "own-validation-00000")
    assert "own-train-00000" not in pending.shards


def test_an_offer_changes_with_the_files_and_waits_for_those_that_are_written(
    tmp_path: Path,
) -> None:
    """Names make the digest; a file that was written a moment ago is unsettled; a source that is
    gone is named."""
    inbox = tmp_path / "inbox"
    settings = small_settings(tmp_path, tmp_path / "data")
    settings["sources"] = [{"kind": "folder", "name": "inbox", "path": str(inbox)}]
    project = Project.open(write_settings(tmp_path / "config.yaml", settings))
    with pytest.raises(DataError, match="source inbox"):
        snapshot_sources(project, settle_s=30)
    clip = write_clip(inbox / "a.mp4", seed=0, seconds=0.5)
    assert [path.name for path in snapshot_sources(project, settle_s=30)[1]] == ["a.mp4"]
    os.utime(clip, (time.time() - 60,) * 2)
    first, unsettled = snapshot_sources(project, settle_s=30)
    assert unsettled == []
    os.utime(clip, (time.time() + 3600,) * 2)  # the clock was set back
    assert snapshot_sources(project, settle_s=30) == (first, [])
    write_clip(inbox / "b.mp4", seed=1, seconds=0.5)
    assert snapshot_sources(project, settle_s=30)[0] != first
    (inbox / "b.mp4").unlink()
    assert snapshot_sources(project, settle_s=30)[0] == first
