"""`verify` of what is no shard: generated videos and their benchmarks, trainings, networks, checkpoints and scores."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hapvr.stages.evaluation import make_benchmark_scores
from hapvr.stages.manifest import make_manifest
from hapvr.stages.project import Project
from hapvr.stages.repair import repair
from hapvr.stages.shard_check import FileCheck
from hapvr.stages.training import close_training, finish_training, prepare_training, run_training
from hapvr.stages.verification import verify_root
from hapvr.stages.videos import make_videos
from tests.conftest import open_small_project, write_settings

CUT = {".json", ".parquet"}
MADE_FROM_OTHERS = {".md", ".png", ".csv", ".jsonl", ".lock", ".yaml"}
"""Files that people read, or that say again what lies elsewhere."""


def damage(path: Path) -> None:
    """Cut a text or table in the middle; flip one bit of what is neither. Of a table, a bit may mean nothing."""
    data = bytearray(path.read_bytes())
    if path.suffix in CUT:
        del data[len(data) // 2 :]
    else:
        data[len(data) // 3] ^= 1
    path.unlink()  # a video may be a link to the user's
    path.write_bytes(data)


def kinds_of_files(root: Path, folder: str) -> list[Path]:
    """A file of each kind below a folder: those whose names differ by digits only are of one kind."""
    found = sorted(path for path in (root / folder).rglob("*") if path.is_file())
    kinds = {re.sub(r"\d+", "", str(path)): path for path in found if path.suffix not in MADE_FROM_OTHERS}
    return list(kinds.values())


def damaged(project: Project) -> list[FileCheck]:
    return [check for check in verify_root(project.root) if check.state != "ok"]


def names(checks: list[FileCheck], path: Path) -> bool:
    return any(path.name in check.message for check in checks)


@pytest.mark.filterwarnings("ignore:.*It is made again")
def test_generated_videos_and_benchmarks(clips_folder: Path, tmp_path: Path) -> None:
    """Each kind of file is named when it is damaged, and the repair gives the bytes of before; the user's are left alone."""
    (tmp_path / "clips").mkdir()
    for clip in sorted(clips_folder.glob("clip *.mp4"))[:5]:
        shutil.copyfile(clip, tmp_path / "clips" / clip.name)
    project = open_small_project(tmp_path / "clips", tmp_path)
    for key in make_manifest(project).shards:
        make_videos(project, key)
    root = project.root.local
    assert root is not None
    assert damaged(project) == []
    test, validation = sorted((root / "corpus").iterdir())
    files = [test / "labels.parquet", validation / "videos.parquet"]
    files += [next(folder.rglob("*.mp4")) for folder in (test, validation)]
    before = {path: path.read_bytes() for path in files}
    for path in files:
        damage(path)
    found = damaged(project)
    assert [path for path in before if not names(found, path)] == []
    without_videos = verify_root(project.root, read_videos=False)
    assert {check.stage for check in without_videos if check.state != "ok"} == {"corpus"}
    assert {check.state for check in repair(project, found)} == {"repaired"}
    assert {path: path.read_bytes() for path in files} == before
    assert damaged(project) == []
    for name, remedy in (("corpus.json", "remove the folder"), ("benchmark.json", ""), ("segments.parquet", "")):
        whole = (test / name).read_bytes()
        damage(test / name)
        found = damaged(project)
        assert len(found) == 1
        assert name in found[0].message
        assert remedy in found[0].message
        (test / name).write_bytes(whole)
    clip = tmp_path / "clips" / "clip 00.mp4"
    clip.unlink()
    clip.write_bytes(b"another video")
    assert damaged(project) == []


@pytest.mark.slow
def test_trainings_and_scores(small_project: Project, tmp_path: Path) -> None:
    """Each kind of file is named when it is damaged; scores are made again, and bad checkpoints removed."""
    shutil.copytree(small_project.folder / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "models", ignore_errors=True)  # those of other tests
    settings = small_project.config.model_dump(mode="json") | {"data_root": str(tmp_path / "data")}
    project = Project.open(write_settings(tmp_path / "config.yaml", settings), folder=tmp_path)
    root = tmp_path / "data"
    prepare_training(project, "begun", tags={})
    run = prepare_training(project, "ended", tags={})
    run_training(project, run)
    finish_training(project, run)
    make_benchmark_scores(project, run, "own-test")
    assert damaged(project) == []
    kinds = kinds_of_files(root, "models")
    wanted = {"current.json", "run.json", "result.json", "network.json", "network.safetensors", "scores.json"}
    assert {path.name for path in kinds} >= wanted
    assert {path.suffix for path in kinds} >= {".pt", ".parquet"}
    for path in kinds:
        before = path.read_bytes()
        damage(path)
        found = damaged(project)
        assert names(found, path), (path, found)
        made_again = path.suffix == ".pt" or path.parent.name == "own-test"
        assert [check.state for check in repair(project, found)] == ["repaired" if made_again else "damaged"]
        if not made_again:
            path.write_bytes(before)
    assert damaged(project) == []
    unreadable = root / "models" / "ended" / "checkpoints" / "step-00000001.pt"
    unreadable.mkdir()
    (found,) = damaged(project)
    assert str(unreadable) in found.message
    unreadable.rmdir()
    assert close_training(project, run)["steps"] > 0
