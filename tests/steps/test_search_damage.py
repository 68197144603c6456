"""Damage to what search, duplicates and watch lists keep: `verify` names it, `repair` makes it
again, nothing blocks that."""

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapvr.care.repair import repair
from hapvr.care.verify import FileCheck, verify_root
from hapvr.errors import DamagedError
from hapvr.search.blank_file import BLANK_FILE
from hapvr.search.current import CURRENT, current_index
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.search.marks import PLACE as MARKS_PLACE, mark
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.duplicate_groups import make_duplicate_groups
from hapvr.steps.duplicate_pairs import PAIRS_STAGE, make_duplicate_pairs
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher, SearchOptions
from hapvr.steps.watch_lists import STAGE as WATCH_STAGE, make_watch_matches
from tests.commands.conftest import Call, call
from tests.steps.search_projects import copied

__all__ = ["call"]

KEY = "in-00001"


def watched_project(searchable: Path, folder: Path) -> Project:
    """A collection with an index, pairs, groups, a watch list with matches, a message that waits,
    and a mark."""
    (folder / "watched").mkdir()
    shutil.copy(searchable / "videos" / "short.mp4", folder / "watched" / "clip.mp4")
    lists = [{"name": "clips", "path": str(folder / "watched"), "min_probability": 0.5}]
    webhook = {"url": "http://127.0.0.1:9/none"}
    project_copy = copied(searchable, folder, **{"watch.lists": lists, "watch.webhook": webhook})
    mark(project_copy.root, "in/short.mp4", "in/long.mp4", "match")
    searcher = Searcher.open(project_copy)
    for key in searcher.collection.shards():
        make_duplicate_pairs(project_copy, searcher, key)
        make_watch_matches(project_copy, searcher, key)

    make_duplicate_groups(project_copy, searcher)
    AlertOutbox(project_copy.root).put({"one": "{}"})  # random weights announce nothing
    return project_copy


@pytest.fixture
def project(searchable: Path, tmp_path: Path) -> Project:
    return watched_project(searchable, tmp_path)


def damage(project: Project, name: str) -> None:
    path = project.root.local_path(name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def states(checks: Sequence[FileCheck]) -> set[str]:
    return {check.state for check in checks}


@dataclass(frozen=True)
class Repaired:
    """A collection, several of whose files were damaged at once, and repaired."""

    digest: str
    """of the network"""
    at_first: list[FileCheck]
    damaged: list[FileCheck]
    repaired: list[FileCheck]
    afterwards: list[FileCheck]


@pytest.fixture(scope="module")
def repaired(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Repaired:
    project = watched_project(searchable, tmp_path_factory.mktemp("damaged"))
    index = current_index(project.root)
    at_first = verify_root(project.root)
    names = (
        f"search/{index.digest}/descriptors/{KEY}/index.parquet",
        f"{PAIRS_STAGE}/{KEY}/rows.parquet",
        f"{WATCH_STAGE}/{KEY}/rows.parquet",
        GROUPS_PLACE,
        CURRENT,
        f"search/{index.digest}/blank.safetensors",
    )
    for name in names:
        damage(project, name)
    damaged = verify_root(project.root)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(counts as missing|are made again)")
        # The test's registry has no champion, so the record of the model is made first.
        update_index(project, search_model(project, index.model), rebuild=True)
        checks = repair(project, verify_root(project.root))

    return Repaired(index.digest, at_first, damaged, checks, verify_root(project.root))


@pytest.mark.slow
def test_nothing_is_damaged_at_first(repaired: Repaired) -> None:
    assert states(repaired.at_first) == {"ok"}


@pytest.mark.slow
def test_all_that_is_damaged_is_named(repaired: Repaired) -> None:
    keys = {(check.kind, check.key) for check in repaired.damaged if check.state == "damaged"}
    assert keys == {
        ("descriptors", f"{repaired.digest}/{KEY}"),
        (PAIRS_STAGE, KEY),
        (WATCH_STAGE, KEY),
        ("duplicate_groups", ""),
        ("search_index", ""),
    }


@pytest.mark.slow
def test_what_can_be_made_again_is(repaired: Repaired) -> None:
    assert states(repaired.repaired) == {"ok", "repaired"}
    assert states(repaired.afterwards) == {"ok"}


def flip_last_bit(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [(flip_last_bit, BLANK_FILE), (Path.unlink, f"{BLANK_FILE} is missing")],
    ids=["flipped", "missing"],
)
def test_vectors_of_blank_pictures_are_made_again(
    searchable: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    project = copied(searchable, tmp_path)
    blank = project.root.local_path(f"search/{current_index(project.root).digest}/{BLANK_FILE}")
    change(blank)
    (check,) = [check for check in verify_root(project.root) if check.state == "damaged"]
    assert message in check.message
    assert states(repair(project, [check])) == {"repaired"}
    assert states(verify_root(project.root)) == {"ok"}


@pytest.mark.slow
def test_without_vectors_of_blank_pictures_nothing_is_searched(
    searchable: Path, tmp_path: Path
) -> None:
    project = copied(searchable, tmp_path)
    digest = current_index(project.root).digest
    project.root.local_path(f"search/{digest}/{BLANK_FILE}").unlink()
    with pytest.raises(DamagedError, match=f"{BLANK_FILE} is missing"):
        Searcher.open(project)


def test_where_no_candidate_can_be_compared_nothing_is_answered(project: Project) -> None:
    """An answer that nothing was found would be false."""
    searcher = Searcher.open(project)
    query = searcher.read_id("in/short.mp4")
    shutil.rmtree(project.root.local_path("features"))
    with pytest.raises(DamagedError, match="videos of the index could not be compared"):
        Searcher.open(project).answer(query, SearchOptions())


@pytest.mark.slow
@pytest.mark.parametrize("name", [MARKS_PLACE, OUTBOX_PLACE])
def test_what_people_said_is_never_made_up(project: Project, name: str) -> None:
    """`verify` names the file, and `repair` leaves it as it is for a person."""
    path = project.root.local_path(name)
    path.write_bytes(bytes(path.stat().st_size))
    before = path.read_bytes()
    (file_check,) = [check for check in verify_root(project.root) if check.state == "damaged"]
    assert name in file_check.message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (left,) = [check for check in repair(project, [file_check]) if check.state == "damaged"]

    assert "Restore it from a copy" in left.message
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["data", "_indices"])
def test_a_damaged_index_answers_nobody(
    searchable: Path, tmp_path: Path, folder: str, call: Call
) -> None:
    """One sentence, from the command and in Python, where matches would else be left out; a repair
    builds the index again."""
    project = copied(searchable, tmp_path)
    config = tmp_path / "config.yaml"
    table = project.root.local_path(current_index(project.root).place) / "frames.lance"
    files = [path for path in (table / folder).rglob("*") if path.is_file()]
    if not files:
        pytest.skip("so few frames have no codes")
    path = max(files, key=lambda path: path.stat().st_size)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedError, match="is not what was written"):
        Searcher.open(project)
    calls = (
        ["search", "--id", "in/long.mp4", "--json"],
        ["duplicates"],
        ["duplicates", "--pairs"],
    )
    for words in calls:
        answer = call(*words, "--config", config)
        assert answer.code == 1, (words, answer)
        assert "is not what was written; `hapvr index build` rebuilds it" in answer.error
        assert len(answer.error.strip().splitlines()) == 1
