"""What every kind of index promises: the same frames for the same queries, changes that are seen
whole, and damage that is named."""

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from hapvr.errors import DamagedError, DataError
from hapvr.search.frame_index import FrameIndex
from hapvr.search.indexes import KINDS, create_index, open_index
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexKind, IndexSettings
from tests.search.exact import DIMS, FRAMES, SMALL, ExactIndex, agree, descriptors, unit, vectors_of

QUERIES = unit(numpy_rng(7, "queries").standard_normal((3, DIMS)))
SHARDS = ("a", "b", "l'été")


@pytest.fixture(params=sorted(KINDS))
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> IndexSettings:
    """Of each kind, with a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kind: IndexKind = request.param
    return SMALL.model_copy(update={"kind": kind})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def exact() -> ExactIndex:
    return ExactIndex()


@pytest.fixture
def index(folder: Path, settings: IndexSettings, exact: ExactIndex) -> FrameIndex:
    """Three shards of twenty videos."""
    index = create_index(folder, DIMS, {"model": "a"}, settings)
    for number, shard in enumerate(SHARDS):
        rows = descriptors([f"{shard}/{video}.mp4" for video in range(20)], seed=number)
        index.replace_shard(shard, rows, digest=f"digest of {shard}")
        exact.replace_shard(shard, rows)

    return index


def check(index: FrameIndex, exact: ExactIndex) -> None:
    """An index finds what the exact one finds, and its files are whole."""
    agree(index.search_frames(QUERIES, 5), exact.search_frames(QUERIES, 5))
    assert index.status().shards.keys() == exact.shards.keys()
    assert index.status().frames == sum(len(rows) for rows in exact.shards.values())
    assert index.verify() == []


def stored_file(folder: Path) -> Path:
    """The largest file that the index is read from."""
    files = json.loads((folder / "index.json").read_text())["files"]
    return max((folder / name for name in files), key=lambda path: path.stat().st_size)


def test_it_is_a_frame_index_that_anybody_opens(
    index: FrameIndex, folder: Path, exact: ExactIndex
) -> None:
    """Whatever kind the settings of the reader name."""
    for kind in KINDS:
        opened = open_index(folder, IndexSettings(kind=kind))
        assert isinstance(opened, FrameIndex)
        assert type(opened) is type(index)
        check(opened, exact)


def test_stored_frames_find_themselves(index: FrameIndex, exact: ExactIndex) -> None:
    rows = exact.shards["b"]
    nearest = index.search_frames(vectors_of(rows) * 3, 1)
    assert nearest["query_frame"].to_pylist() == list(range(len(rows)))
    assert nearest["video_id"].to_pylist() == rows["video_id"].to_pylist()
    assert nearest["second"].to_pylist() == rows["second"].to_pylist()
    assert nearest["similarity"].to_numpy() == pytest.approx(1, abs=2e-3)


def test_fewer_frames_than_are_asked_for(folder: Path, settings: IndexSettings) -> None:
    index = create_index(folder, DIMS, {}, settings)
    assert len(index.search_frames(QUERIES, 50)) == 0
    index.replace_shard("own", descriptors(["own/only.mp4"], seed=1))
    assert len(index.search_frames(QUERIES, 50)) == len(QUERIES) * FRAMES


def test_it_tells_what_it_holds(index: FrameIndex) -> None:
    status = index.status()
    assert status.dims == DIMS
    assert status.videos == 60
    assert status.frames == 60 * FRAMES
    assert status.shards == {shard: f"digest of {shard}" for shard in SHARDS}
    assert index.shard_digests() == status.shards
    assert index.videos()["l'été/7.mp4"] == "l'été"
    assert sorted(index.frames().video_ids()) == sorted(index.videos())


def test_the_digest_depends_on_shards_and_model_alone(
    index: FrameIndex, folder: Path, settings: IndexSettings
) -> None:
    before = index.status().digest
    index.replace_shard("a", descriptors(["a/other.mp4"], seed=9), digest="another")
    assert index.status().digest != before
    index.replace_shard("a", descriptors(["a/0.mp4"], seed=0), digest="digest of a")
    assert index.status().digest == before
    of_other_model = create_index(folder, DIMS, {"model": "b"}, settings)
    for shard in SHARDS:
        rows = descriptors([f"{shard}/0.mp4"], seed=1)
        of_other_model.replace_shard(shard, rows, digest=f"digest of {shard}")

    assert of_other_model.status().digest != before


def test_a_replaced_shard_has_its_new_frames_alone(index: FrameIndex, exact: ExactIndex) -> None:
    rows = descriptors([f"b/{video}.mp4" for video in range(5, 30)], seed=9)
    index.replace_shard("b", rows, digest="new")
    exact.replace_shard("b", rows)
    check(index, exact)
    assert index.shard_digests()["b"] == "new"


def test_a_shard_without_frames_is_held(index: FrameIndex, exact: ExactIndex) -> None:
    nothing = descriptors([], seed=0)
    index.replace_shard("b", nothing)
    exact.replace_shard("b", nothing)
    check(index, exact)


def test_a_deleted_shard_is_not_found(index: FrameIndex, exact: ExactIndex) -> None:
    index.delete_shard("l'été")
    exact.delete_shard("l'été")
    check(index, exact)


def test_deleting_what_is_not_there_changes_nothing(index: FrameIndex) -> None:
    revision = index.status().revision
    index.delete_shard("absent")
    assert index.status().revision == revision


def test_forgotten_videos_are_in_no_file(
    index: FrameIndex, exact: ExactIndex, folder: Path
) -> None:
    rows = exact.shards["a"]
    index.forget(["a/3.mp4", "no/such.mp4"], {"digest of a": "after"})
    exact.replace_shard("a", rows.filter(pc.not_equal(rows["video_id"], "a/3.mp4")))
    check(index, exact)
    assert index.shard_digests()["a"] == "after"
    for path in folder.rglob("*"):
        assert path.is_dir() or b"a/3.mp4" not in path.read_bytes()


@pytest.mark.parametrize("rebuild", [False, True], ids=["update", "rebuild"])
def test_optimising_changes_no_answer(index: FrameIndex, exact: ExactIndex, rebuild: bool) -> None:
    index.optimise(rebuild=rebuild)
    check(index, exact)
    assert index.recall() == 1


def test_an_open_index_stays_as_it_was(index: FrameIndex, folder: Path, exact: ExactIndex) -> None:
    reader = open_index(folder, SMALL)
    index.delete_shard("a")
    agree(reader.search_frames(QUERIES, 5), exact.search_frames(QUERIES, 5))
    assert reader.verify() == []
    exact.delete_shard("a")
    check(open_index(folder, SMALL), exact)


def test_what_a_killed_writer_left_is_not_seen(
    index: FrameIndex, folder: Path, exact: ExactIndex
) -> None:
    """It dies before index.json is written; the next writer goes on from what was there."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    index.replace_shard("b", descriptors(["b/other.mp4"], seed=77))
    for path, content in before.items():
        path.write_bytes(content)
    check(open_index(folder, SMALL), exact)
    rows = descriptors(["d/1.mp4"], seed=78)
    open_index(folder, SMALL).replace_shard("d", rows)
    exact.replace_shard("d", rows)
    check(open_index(folder, SMALL), exact)


def test_damage_is_found(index: FrameIndex, folder: Path) -> None:
    path = stored_file(folder)
    content = path.read_bytes()
    path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    (problem,) = index.verify()
    assert path.name in problem
    assert "is not what was written" in problem


def test_a_damaged_index_is_not_opened(index: FrameIndex, folder: Path) -> None:
    path = stored_file(folder)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedError, match=r"is not what was written; `hapvr index build`"):
        open_index(folder, SMALL)


def test_a_missing_file_is_named(index: FrameIndex, folder: Path) -> None:
    stored_file(folder).unlink()
    with pytest.raises(DamagedError, match=r"is missing; `hapvr index build`"):
        open_index(folder, SMALL)


def test_a_state_of_another_version_is_named(index: FrameIndex, folder: Path) -> None:
    place = folder / "index.json"
    state = json.loads(place.read_text())
    place.write_text(json.dumps(state | {"version": 1}))
    with pytest.raises(DamagedError, match="is of another table"):
        open_index(folder, SMALL)


def test_a_state_without_its_shards_is_found(index: FrameIndex, folder: Path) -> None:
    place = folder / "index.json"
    state = json.loads(place.read_text())
    place.write_text(json.dumps(state | {"shards": {}}))
    (problem,) = open_index(folder, SMALL).verify()
    assert "is of another table" in problem


def test_a_damaged_state_is_named(index: FrameIndex, folder: Path) -> None:
    (folder / "index.json").write_text("{")
    with pytest.raises(DamagedError, match=r"index\.json below .* is damaged"):
        open_index(folder, SMALL)


def test_no_index_says_what_makes_one(folder: Path) -> None:
    with pytest.raises(DataError, match="`hapvr index build` makes one"):
        open_index(folder, SMALL)
