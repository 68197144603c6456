"""`hapvr verify` and its repairs, of files that were made and are lost."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from hapvr.care.repair import repair
from hapvr.care.verify import verify_root
from hapvr.collection import add_folders, update_collection
from hapvr.data.filesystem import MADE_FOLDER
from hapvr.data.manifest import PLANNED
from hapvr.errors import DamagedError
from hapvr.files import file_sha256
from hapvr.progress import no_progress
from hapvr.search.marks import mark
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.watch_queries import make_watch_list
from hapvr.steps.watch_runs import run_watch_lists
from tests.care.damage import damaged
from tests.conftest import write_clip

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:whitening")]

UNRECORDED = (
    ".lock",
    f"{MADE_FOLDER}/",
    "collection.yaml",
    "folders.yaml",
    "/_transactions/",
    "/_versions/",
)
"""Parts of the names of files whose loss is none: nothing reads them, or every verb names them.
`tests/search/test_index_damage.py` has the version of an index that is read."""


@contextmanager
def no_bar(_: str):
    yield no_progress


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A collection with a file of everything that is made without a training. Who removes one, puts
    it back."""
    folder = tmp_path_factory.mktemp("lost")
    clips = [write_clip(folder / "clips" / f"{n}.mp4", seed=n, seconds=4) for n in range(3)]
    shutil.copy(clips[0], folder / "clips" / "same.mp4")
    project = add_folders(folder / "root", [folder / "clips"])
    update_collection(project, no_bar)
    digest = file_sha256(clips[1])
    make_watch_list(project, clips[1], name="1.mp4", sha256=digest, max_bytes=10**6)
    run_watch_lists(project, no_bar)
    mark(project.root, "clips/1.mp4", "clips/2.mp4", "not_a_match")
    project.root.write_json(PLANNED, {"moved": []})
    AlertOutbox(project.root).put({"1": "{}"})
    return project


def files_of(project: Project) -> list[str]:
    """Names of all files whose loss is damage."""
    base = project.root.local_path("x").parent
    paths = [path for path in sorted(base.rglob("*")) if path.is_file()]
    names = [path.relative_to(base).as_posix() for path in paths]
    return [name for name in names if not any(part in name for part in UNRECORDED)]


def test_every_file_that_is_lost_is_damage(collection: Project, tmp_path: Path) -> None:
    """And all that is there is none."""
    assert damaged(collection) == []
    names = files_of(collection)
    assert {"marks/pairs.json", PLANNED, OUTBOX_PLACE} < set(names)
    unseen = []
    for name in names:
        path = collection.root.local_path(name)
        whole = path.rename(tmp_path / path.name)
        if not damaged(collection):
            unseen.append(name)
        whole.rename(path)

    assert unseen == []
    assert damaged(collection) == []


MADE_AGAIN = (
    "videos",
    "frames",
    "features",
    "search",
    "duplicate_pairs",
    "duplicate_groups/groups.parquet",
    "duplicate_groups/pictures.parquet",
    "watch_matches",
)


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_what_is_lost_and_can_be_made_again_is_repaired(collection: Project, name: str) -> None:
    """Files and whole folders."""
    path = collection.root.local_path(name)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()

    checks = verify_root(collection.root)
    assert {check.state for check in checks} >= {"damaged"}
    after = repair(collection, checks)
    assert [check for check in after if check.state not in ("ok", "repaired")] == []
    assert path.exists()
    assert damaged(collection) == []


def test_a_search_names_the_model_that_its_index_has_lost(
    collection: Project, tmp_path: Path
) -> None:
    models = collection.root.local_path("models")
    whole = models.rename(tmp_path / "models")
    with pytest.raises(
        DamagedError, match=r"models/\S+, which the index was made with, is missing"
    ):
        Searcher.open(collection)
    whole.rename(models)


def test_records_that_are_lost_are_not_made_up(collection: Project, tmp_path: Path) -> None:
    """A repair leaves them to a person."""
    for name in ("marks/pairs.json", PLANNED, OUTBOX_PLACE):
        path = collection.root.local_path(name)
        whole = path.rename(tmp_path / path.name)
        (after,) = repair(collection, damaged(collection))
        assert after.state == "damaged"
        assert "estore it from a copy" in after.message
        assert not path.exists()
        whole.rename(path)
