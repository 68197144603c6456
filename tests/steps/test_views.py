"""Training views and pseudo labels: one pass over the clips for both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hapvr.data.filesystem import DataRoot
from hapvr.data.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE
from hapvr.networks.views import ViewDrawer, ViewPlan
from hapvr.steps.project import Project
from hapvr.steps.training import training_shards
from hapvr.steps.views import make_pseudo_labels, make_training_views, make_views_and_labels

STAGES = (VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE)


@pytest.fixture
def framed(small_project: Project, tmp_path: Path) -> Project:
    """The small project with one training shard, up to whitening."""
    key = training_shards(small_project)[0]
    for name in ("whitening", f"manifest/{key}", f"frames/{key}"):
        shutil.copytree(small_project.root.local_path(name), tmp_path / name)
    return Project(small_project.config, DataRoot(tmp_path), small_project.folder)


def digests(project: Project, key: str) -> dict[str, str]:
    return {stage: project.shard(stage, key).data_digest() for stage in STAGES}


def test_one_pass_makes_what_each_stage_makes_alone(
    small_project: Project, framed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal files, and each clip is drawn once instead of twice."""
    key = training_shards(small_project)[0]
    drawn: list[ViewPlan] = []
    draw = ViewDrawer.draw

    def counted(self: ViewDrawer, plan: ViewPlan) -> object:
        drawn.append(plan)
        return draw(self, plan)

    monkeypatch.setattr(ViewDrawer, "draw", counted)
    results = make_views_and_labels(framed, key)
    assert [(name, result.done) for name, result in results.items()] == [(VIEWS_STAGE, True), (LABELS_STAGE, True)]
    assert len(drawn) == len(set(drawn)) == results[VIEWS_STAGE].num_rows
    together = digests(framed, key)
    for stage in STAGES:
        shutil.rmtree(framed.root.local_path(stage))
    assert make_training_views(framed, key).done
    assert make_pseudo_labels(framed, key).done
    assert digests(framed, key) == together
