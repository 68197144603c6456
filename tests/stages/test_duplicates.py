"""Duplicates of a real collection: kinds, groups, marks, and work that is not done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from hapvr.cli import app
from hapvr.errors import DamagedError
from hapvr.search.marks import mark_pair
from hapvr.stages.duplicates import (
    GROUPS_PLACE,
    PAIRS_STAGE,
    duplicate_pairs,
    make_duplicate_groups,
    make_duplicate_pairs,
)
from hapvr.stages.project import Project
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.searcher import Searcher
from tests.scorer.bundles import write_scenes
from tests.stages.searchable import make_features_of, searchable_project

LIKELY = 0.5


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With a third copy of short.mp4, of equal bytes, and pairs that were looked for."""
    project = searchable_project(tmp_path_factory.mktemp("searchable"))
    make_all(project)
    return project


def make_all(project: Project) -> list[bool]:
    """Whether each shard was looked through."""
    searcher = Searcher.open(project)
    return [make_duplicate_pairs(project, searcher, key).done for key in searcher.shards()]


def kinds(project: Project) -> dict[tuple[str, str], str]:
    pairs = duplicate_pairs(project, Searcher.open(project), min_probability=LIKELY)
    return {(pair.first, pair.second): pair.kind for pair in pairs}


def test_pairs_have_their_kind(project: Project) -> None:
    """A re-encoded file is a copy, an excerpt within other footage is an overlap; strangers are no pair."""
    found = kinds(project)
    assert found == {
        ("in/short.mp4", "in/trips/copy of short.mp4"): "copy",
        ("in/long.mp4", "in/trips/part.mp4"): "overlap",
    }
    searcher = Searcher.open(project)
    (part,) = [one for one in duplicate_pairs(project, searcher, min_probability=LIKELY) if one.kind == "overlap"]
    assert (part.first_start_s, part.second_start_s) == (10, 2)
    assert part.second_covered == pytest.approx(12 / 16, abs=0.02)
    assert part.first_covered == pytest.approx(12 / 40, abs=0.02)


def test_groups_are_written_and_say_what_to_keep(project: Project) -> None:
    members = make_duplicate_groups(project, Searcher.open(project), min_probability=LIKELY)
    assert sorted(member.video_id for member in members) == ["in/short.mp4", "in/trips/copy of short.mp4"]
    stored = pl.read_parquet(project.root.local_path(GROUPS_PLACE))
    assert stored["keep"].sum() == 1
    assert stored["group"].n_unique() == 1
    assert all(Path(path).is_file() for path in stored["path"])


def test_only_what_is_new_is_looked_through(project: Project, tmp_path: Path) -> None:
    """Nothing is done twice; a new shard alone is searched, and finds the older videos; what goes takes its pairs along."""
    videos, data = tmp_path / "videos", tmp_path / "data"
    shutil.copytree(project.folder / "videos", videos)
    shutil.copytree(project.folder / "data", data)
    config = (project.folder / "config.yaml").read_text().replace(str(project.folder / "data"), str(data))
    (tmp_path / "config.yaml").write_text(config.replace(str(project.folder / "videos"), str(videos)))
    copied = Project.open(tmp_path / "config.yaml", folder=tmp_path)
    assert not any(make_all(copied))
    write_scenes(videos / "z new excerpt.mp4", list(range(300, 306)), fps=5)
    shutil.copy(videos / "other 1.mp4", videos / "z same bytes.mp4")
    make_features_of(copied)
    update_index(copied, search_model(copied, str(project.folder / "bundle-0")))
    assert sum(make_all(copied)) == 1
    found = kinds(copied)
    assert found["in/short.mp4", "in/z new excerpt.mp4"] == "contained"
    assert found["in/other 1.mp4", "in/z same bytes.mp4"] == "copy"
    searcher = Searcher.open(copied)
    digests = [searcher.facts.of(name).sha256 for name in ("in/short.mp4", "in/trips/copy of short.mp4")]
    mark_pair(copied.root, *digests, "not_a_match", names=("a", "b"))  # type: ignore[arg-type]
    assert ("in/short.mp4", "in/trips/copy of short.mp4") not in kinds(copied)
    other = [searcher.facts.of(name).sha256 for name in ("in/short.mp4", "in/other 0.mp4")]
    mark_pair(copied.root, *other, "match", names=("a", "b"))  # type: ignore[arg-type]
    assert all(("in/other 0.mp4" in one) is False for one in kinds(copied))


def test_damaged_pairs_are_looked_for_again(project: Project) -> None:
    """The stage that owns a file takes a damaged one as missing; a reader names it and the way on."""
    before = kinds(project)
    shards = project.root.list_folders(PAIRS_STAGE)
    project.root.local_path(f"{PAIRS_STAGE}/{shards[0]}/rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DamagedError, match=r"rows\.parquet .* is damaged .*; run `hapvr duplicates` again"):
        kinds(project)
    assert make_all(project).count(True) == 1
    assert kinds(project) == before


def test_the_command_lists_groups_and_pairs(project: Project, tmp_path: Path) -> None:
    def call(*options: str) -> str:
        arguments = ["duplicates", "--config", str(project.folder / "config.yaml"), "--min-probability", str(LIKELY)]
        result = CliRunner().invoke(app, [*arguments, *options])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    text = call("--out", str(tmp_path / "groups.csv"))
    assert "1 groups of copies, 1 videos more than needed" in text
    assert "  keep  in/" in text
    assert len(pl.read_csv(tmp_path / "groups.csv")) == 2
    rows = json.loads(call("--pairs", "--json", "--kind", "overlap"))["pairs"]
    assert [(row["first"], row["second"]) for row in rows] == [("in/long.mp4", "in/trips/part.mp4")]
    assert "0 pairs" in call("--pairs", "--in", "elsewhere/")
