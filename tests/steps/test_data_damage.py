"""Damaged files: the stage that owns a file makes it anew, everybody else names it."""

from pathlib import Path

import pytest

from hapvr.care.verify import verify_root
from hapvr.data.features import FeatureStore
from hapvr.data.frames import INDEX_COLUMNS
from hapvr.errors import DamagedError
from hapvr.steps.features import make_features
from hapvr.steps.project import Project
from tests.commands.conftest import Call, call
from tests.conftest import MakeOnce
from tests.steps.data_projects import digests, finished_project
from tests.steps.search_projects import copied

__all__ = ["call"]
KEY = "in-00000"


@pytest.fixture
def finished(make_once: MakeOnce) -> Path:
    """The folder of a project in which all data stages are finished."""
    return make_once("finished data", finished_project)


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Project:
    """The same with a data root of its own, to be damaged."""
    return copied(finished, tmp_path)


def files(project: Project) -> list[Path]:
    """Every file that a stage wrote, relative to the data root."""
    root = Path(project.root.url)
    return sorted(
        path.relative_to(root)
        for path in root.rglob("*")
        if path.is_file() and ".locks" not in path.parts
    )


@pytest.mark.slow
def test_verify_finds_what_stages_do_not_look_for_and_repairs_it(
    project: Project, finished: Path, call: Call
) -> None:
    """One flipped bit in the middle of each data file: `hapvr verify` names each and exits with 1;
    with --repair it makes the bytes of before, and the next call exits with 0."""
    verify = ("verify", "--config", project.folder / "config.yaml")
    root = Path(project.root.url)
    assert {check.state for check in verify_root(project.root)} == {"ok"}
    damaged = [name for name in files(project) if name.name == "data.parquet"]
    for name in damaged:
        data = bytearray((root / name).read_bytes())
        data[len(data) // 2] ^= 1
        (root / name).write_bytes(data)

    outcome = call(*verify, "--json")
    wrong = [check for check in outcome.json["files"] if check["state"] == "damaged"]
    assert outcome.code == 1
    assert sorted(check["kind"] for check in wrong) == sorted(name.parts[0] for name in damaged)
    assert all("hapvr verify --config FILE --repair" in check["message"] for check in wrong)
    repaired = call(*verify, "--repair")
    assert repaired.code == 0, repaired.out
    assert repaired.out.count(": repaired") == len(damaged), repaired.out
    assert digests(root) == digests(finished / "data")
    assert call(*verify).code == 0


def test_damaged_rows_are_not_taken_over(project: Project) -> None:
    """A bit that flipped in stored features is not copied under a new digest when another video
    changes."""
    path = Path(project.root.url) / f"features/{KEY}/data.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    index = project.shard("features", KEY)
    frames = project.shard("frames", KEY)
    rows = frames.index().rows(named=True)
    rows[0] |= {"message": "changed"}
    provenance = frames.require({})
    frames.write_index(rows, provenance=provenance, fields=INDEX_COLUMNS)
    with pytest.warns(UserWarning, match="is damaged; all its rows are rebuilt"):
        assert make_features(project, KEY).done
    assert project.root.sha256(index.data_name) == index.read().data_sha256
    path.write_bytes(data[:-100])
    with pytest.raises(
        DamagedError, match=rf"features/{KEY}/data\.parquet .* has \d+ bytes, \d+ were written"
    ):
        FeatureStore(project.root, [KEY])
