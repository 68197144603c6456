"""Forgetting a clip that benchmarks were made of."""

from dataclasses import dataclass

import pytest

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.care.forget import forget, plan_forgetting
from hapvr.data import manifest
from hapvr.steps.project import Project
from tests.steps.search_projects import copied

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class HeldOut:
    """A project whose only held-out clip was forgotten, of which benchmarks were made."""

    project: Project
    clip: str
    """the file's name, which those of its copies begin with"""
    before: dict[str, BenchmarkDefinition]
    """by name"""
    after: dict[str, BenchmarkDefinition]

    def listed(self) -> list[str]:
        """Ids of all videos that the manifest has."""
        ids: list[str] = manifest.manifest_table(self.project.root)["video_id"].to_pylist()
        return ids


def benchmarks_in(project: Project) -> dict[str, BenchmarkDefinition]:
    root = project.root
    names = set(root.list_folders("corpus")) & {"own-test", "own-validation"}
    return {name: load_definition(root.local_path(f"corpus/{name}")) for name in names}


@pytest.fixture(scope="module")
def held_out(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> HeldOut:
    project = copied(small_project.folder, tmp_path_factory.mktemp("held out"))
    rows = manifest.manifest_table(project.root).to_pylist()
    video_id = next(row["video_id"] for row in rows if row["source"] == "own-held-out")
    before = benchmarks_in(project)
    forget(project, plan_forgetting(project, [video_id]))
    return HeldOut(project, video_id.partition("/")[2], before, benchmarks_in(project))


def test_benchmarks_that_were_made_of_a_forgotten_clip_are_rebuilt_without_it(
    held_out: HeldOut,
) -> None:
    assert held_out.after.keys() == held_out.before.keys()
    assert held_out.after != held_out.before
    ids = {video_id for each in held_out.after.values() for video_id in each.video_ids}
    assert ids <= set(held_out.listed())


def test_copies_of_a_forgotten_clip_go_with_it(held_out: HeldOut) -> None:
    """And those that show it with another one."""
    corpus = held_out.project.root.local_path("corpus")
    assert not [path for path in corpus.rglob("*") if path.name.startswith(held_out.clip)]
    assert not [video_id for video_id in held_out.listed() if held_out.clip in video_id]


def test_the_videos_of_benchmarks_stay_out_of_the_collection(held_out: HeldOut) -> None:
    root = held_out.project.root
    keys = manifest.collection_keys(root, manifest.shard_keys(root))
    assert not any(manifest.source_of(key) in held_out.before for key in keys)
