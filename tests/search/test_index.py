"""An index against an exact one in memory: what it finds, how it changes, and what is left of what
it forgets."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hapvr.data.filesystem import DataRoot
from hapvr.search import lance_index, lance_upkeep
from hapvr.search.hashes import IndexedFrames
from hapvr.search.lance_index import LanceIndex
from hapvr.seeding import numpy_rng
from tests.search.exact import DIMS, FRAMES, SMALL, ExactIndex, agree, descriptors, unit, vectors_of


def test_an_index_says_how_much_of_it_is_indexed(filled: tuple[Path, ExactIndex]) -> None:
    status = LanceIndex(filled[0], SMALL).status()
    assert status.videos == 150
    assert status.frames == 1200
    assert status.unindexed_frames == 400
    assert status.parts == 1


@pytest.mark.parametrize("shard", ["a", "c"], ids=["in the index", "not yet in it"])
def test_frames_are_found_with_their_second_and_similarity(
    filled: tuple[Path, ExactIndex], shard: str
) -> None:
    folder, exact = filled
    frames = exact.shards[shard]
    queries = vectors_of(frames)[8:24]
    neighbours = LanceIndex(folder, SMALL).search_frames(queries, 6)
    assert neighbours["query_frame"].to_pylist() == [
        number for number in range(16) for _ in range(6)
    ]
    best = neighbours.take(pa.array(range(0, len(neighbours), 6)))
    assert best["video_id"].to_pylist() == frames["video_id"][8:24].to_pylist()
    assert best["second"].to_pylist() == frames["second"][8:24].to_pylist()
    np.testing.assert_allclose(best["similarity"].to_numpy(), 1, atol=2e-3)
    agree(neighbours, exact.search_frames(queries, 6))


def test_collections_of_nothing_and_of_one_video(tmp_path: Path) -> None:
    index = LanceIndex.create(tmp_path, DIMS, {}, SMALL)
    query = unit(np.ones((1, DIMS)))
    assert len(index.search_frames(query, 5)) == 0
    assert index.recall() == 1
    index.optimise()
    index.replace_shard("own", descriptors(["own/only.mp4"], seed=1))
    index.optimise()
    assert index.videos() == {"own/only.mp4": "own"}
    assert len(index.search_frames(query, 50)) == FRAMES
    assert index.recall() == 1
    assert index.verify() == []


class ShardsComeAndGo(RuleBasedStateMachine):
    """Any order of changes leaves what an exact index says, also for who opens it again, and files
    that are whole."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hapvr-index-"))
        self.index = LanceIndex.create(self.folder, DIMS, {"model": "a"}, SMALL)
        self.exact = ExactIndex()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(lance_upkeep, "MAX_FRAGMENTS", 2)

    @rule(
        shard=st.sampled_from(["own-00000", "l'été-00001", "x"]),
        videos=st.integers(0, 12),
        seed=st.integers(0, 5),
    )
    def replace_shard(self, shard: str, videos: int, seed: int) -> None:
        # Not the vectors of another shard: which of two equal ones comes first is nobody's
        # business.
        rows = descriptors(
            [f"{shard}/'{number}' ünd.mp4" for number in range(videos)], seed=len(shard) * 10 + seed
        )
        self.index.replace_shard(shard, rows, digest=str(seed))
        self.exact.replace_shard(shard, rows)

    @rule(shard=st.sampled_from(["own-00000", "x", "absent"]))
    def delete_shard(self, shard: str) -> None:
        self.index.delete_shard(shard)
        self.exact.delete_shard(shard)

    @rule(shard=st.sampled_from(["own-00000", "l'été-00001", "x"]), number=st.integers(0, 12))
    def forget(self, shard: str, number: int) -> None:
        gone = f"{shard}/'{number}' ünd.mp4"
        self.index.forget([gone, "no/such.mp4"], {"5": "after"})
        if shard in self.exact.shards:
            self.exact.replace_shard(
                shard,
                self.exact.shards[shard].filter(
                    pc.not_equal(self.exact.shards[shard]["video_id"], gone)
                ),
            )

        assert "5" not in self.index.shard_digests().values()

    @rule()
    def open_again(self) -> None:
        self.index = LanceIndex(self.folder, SMALL)

    @rule()
    def optimise(self) -> None:
        self.index.optimise()

    @invariant()
    def answers_as_the_exact_index(self) -> None:
        if not hasattr(self, "index"):
            return
        queries = unit(numpy_rng(7, "queries").standard_normal((3, DIMS)))
        agree(self.index.search_frames(queries, 5), self.exact.search_frames(queries, 5))
        held = self.exact.shards
        status = self.index.status()
        assert status.shards.keys() == held.keys()
        assert status.videos == sum(len(ids_of(frames)) for frames in held.values())
        assert status.frames == sum(len(frames) for frames in held.values())
        assert self.index.videos() == {
            name: shard for shard, frames in held.items() for name in ids_of(frames)
        }
        assert self.index.verify() == []

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder, ignore_errors=True)


TestShardsComeAndGo = ShardsComeAndGo.TestCase
TestShardsComeAndGo.settings = hypothesis_settings(
    max_examples=6, stateful_step_count=12, deadline=None
)


def test_few_new_rows_wait_outside_of_the_index(copy: tuple[Path, ExactIndex]) -> None:
    index = LanceIndex(copy[0], SMALL)
    index.optimise()
    index.replace_shard("few", descriptors(["few/1.mp4"], seed=3))
    revision = index.status().revision
    index.optimise()
    assert index.status().unindexed_frames == FRAMES
    assert index.status().revision == revision


def test_more_new_rows_become_a_part_of_the_index_and_many_parts_one(
    copy: tuple[Path, ExactIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found stays."""
    monkeypatch.setattr(lance_upkeep, "MAX_PARTS", 3)
    folder, shared_index = copy
    exact = ExactIndex()
    exact.shards = dict(shared_index.shards)
    index = LanceIndex(folder, SMALL)
    index.optimise()
    num_parts = [index.status().parts]
    for number in range(4):
        rows = descriptors([f"new{number}/{video}.mp4" for video in range(20)], seed=10 + number)
        index.replace_shard(f"new{number}", rows)
        exact.replace_shard(f"new{number}", rows)
        index.optimise()
        num_parts.append(index.status().parts)
        queries = vectors_of(rows)[:5]
        agree(index.search_frames(queries, 4), exact.search_frames(queries, 4))

    assert num_parts == [2, 3, 1, 2, 3]


def test_an_open_index_stays_at_its_version_while_that_is_young(
    copy: tuple[Path, ExactIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is replaced. Later its files go."""
    folder, exact = copy
    reader = LanceIndex(folder, SMALL)
    writer = LanceIndex(folder, SMALL)
    writer.optimise()
    query = vectors_of(exact.shards["b"])[:1]
    before = reader.search_frames(query, 5)
    files = {path for path in folder.rglob("*") if path.suffix in (".lance", ".manifest", ".idx")}
    for number in range(3):
        writer.replace_shard("b", descriptors(["b/other.mp4"], seed=70 + number))
        writer.optimise(rebuild=True)

    assert reader.search_frames(query, 5) == before
    assert reader.status().videos == 150
    assert LanceIndex(folder, SMALL).status().videos == writer.status().videos == 101
    assert "b/0.mp4" not in writer.search_frames(query, 5)["video_id"].to_pylist()
    assert all(path.exists() for path in files)
    monkeypatch.setattr(lance_index, "KEEP_S", 0)
    writer.delete_shard("b")
    writer.replace_shard("c", descriptors(["c/other.mp4"], seed=80))
    writer.optimise()
    assert not all(path.exists() for path in files)
    assert writer.recall() == 1
    assert writer.verify() == []


GONE = {
    "one video": lambda names: ["a/7.mp4"],
    "a whole fragment": lambda names: [name for name in names if name.startswith("b/")],
    "all but one": lambda names: names[1:],
}
"""What is forgotten, of all videos; of the last no index is left."""


@dataclass(frozen=True)
class Forgotten:
    """An index from which videos were forgotten."""

    folder: Path
    gone: list[str]
    left: set[str]
    vectors: list[bytes]
    """of what is gone, as they were stored"""
    codes: set[str]
    """folders of the codes that there were"""


@pytest.fixture(scope="module", params=GONE)
def forgotten(
    request: pytest.FixtureRequest,
    filled: tuple[Path, ExactIndex],
    tmp_path_factory: pytest.TempPathFactory,
) -> Forgotten:
    parent = tmp_path_factory.mktemp("forgotten")
    folder = Path(shutil.copytree(filled[0], parent / "index"))
    rows = filled[1].shards
    names = [name for shard in "abc" for name in ids_of(rows[shard])]
    gone = GONE[request.param](names)
    vectors = [
        np.asarray(vector, np.float32).tobytes()
        for frames in rows.values()
        for name, vector in zip(frames["video_id"].to_pylist(), vectors_of(frames), strict=True)
        if name in gone
    ]
    assert found_in(folder, vectors[:1])
    codes = code_folders(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(parent / "cache"))
        LanceIndex(folder, SMALL).forget(gone, {})
    return Forgotten(folder, gone, set(names) - set(gone), vectors, codes)


def code_folders(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("*.idx")}


def test_no_file_has_vectors_or_names_of_what_was_forgotten(forgotten: Forgotten) -> None:
    names = [name.encode() for name in forgotten.gone[1:]]
    assert not found_in(forgotten.folder, [*forgotten.vectors, *names])


def test_no_codes_stay_of_an_index_that_forgets(forgotten: Forgotten) -> None:
    assert not forgotten.codes & code_folders(forgotten.folder)


def test_no_older_version_stays_of_an_index_that_forgets(forgotten: Forgotten) -> None:
    assert len(list(forgotten.folder.glob("*.lance/_versions/*.manifest"))) == 1


def test_an_index_that_forgets_keeps_all_others(forgotten: Forgotten) -> None:
    """And finds them."""
    index = LanceIndex(forgotten.folder, SMALL)
    assert set(index.videos()) == forgotten.left
    assert index.recall() == 1
    assert index.verify() == []


def ids_of(rows: pa.Table) -> list[str]:
    return list(dict.fromkeys(rows["video_id"].to_pylist()))


def found_in(folder: Path, needles: list[bytes]) -> bool:
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return any(needle in text for needle in needles for text in texts)


def test_what_a_killed_writer_left_is_not_seen(copy: tuple[Path, ExactIndex]) -> None:
    """A writer that dies before index.json is written has changed nothing; the next one goes on."""
    folder, exact = copy
    state = (folder / "index.json").read_bytes()
    LanceIndex(folder, SMALL).replace_shard("b", descriptors(["b/other.mp4"], seed=77))
    (folder / "index.json").write_bytes(state)
    index = LanceIndex(folder, SMALL)
    assert index.status().videos == 150
    assert index.verify() == []
    query = vectors_of(exact.shards["b"])[:3]
    agree(index.search_frames(query, 5), exact.search_frames(query, 5))
    index.replace_shard("d", descriptors(["d/1.mp4"], seed=78))
    assert LanceIndex(folder, SMALL).status().videos == 151
    agree(index.search_frames(query, 5), exact.search_frames(query, 5))


@dataclass(frozen=True)
class Readings:
    """What of an index is read when it is opened, time after time."""

    folder: Path
    names: list[str]
    """files that were read since they were last cleared"""

    def of_opening(self) -> list[str]:
        """Open the index; returns what is read then."""
        self.names.clear()
        LanceIndex(self.folder, SMALL)
        return list(self.names)


@pytest.fixture
def opened_before(copy: tuple[Path, ExactIndex], monkeypatch: pytest.MonkeyPatch) -> Readings:
    """An index that was opened once, for which all its files were read."""
    readings = Readings(copy[0], [])
    sha256 = DataRoot.sha256

    def counted(root: DataRoot, name: str) -> str:
        readings.names.append(name)
        return sha256(root, name)

    monkeypatch.setattr(DataRoot, "sha256", counted)
    files = json.loads((copy[0] / "index.json").read_text())["files"]
    assert sorted(readings.of_opening()) == sorted(files)
    return readings


def checked_files() -> Path:
    """Where the user's own cache remembers what was read."""
    return Path(os.environ["XDG_CACHE_HOME"]) / "hapvr" / "checked"


def test_an_index_that_was_opened_before_is_not_read_again(opened_before: Readings) -> None:
    assert opened_before.of_opening() == []


def test_what_was_written_is_not_read_by_the_next_search(opened_before: Readings) -> None:
    """Its writer has read it."""
    index = LanceIndex(opened_before.folder, SMALL)
    opened_before.names.clear()
    index.replace_shard("d", descriptors(["d/0.mp4"], seed=9))
    assert opened_before.names
    assert opened_before.of_opening() == []


def test_a_file_that_was_touched_is_read_again(opened_before: Readings) -> None:
    os.utime(next((opened_before.folder / "frames.lance" / "data").iterdir()))
    assert len(opened_before.of_opening()) == 1


def test_with_a_damaged_cache_all_is_read_again(opened_before: Readings) -> None:
    for place in checked_files().iterdir():
        place.write_text("{")
    assert len(opened_before.of_opening()) > 1


def test_with_a_cache_that_others_may_write_all_is_read_again(opened_before: Readings) -> None:
    checked_files().chmod(0o777)
    assert len(opened_before.of_opening()) > 1


def test_frames_that_are_indexed_are_told_from_others() -> None:
    """By their times and hashes; a video may be cut by the chunks of a table."""
    hashes = np.array([11, 12, 13, 21], np.uint64)
    names = pa.chunked_array([["a", "a"], ["a", "b"]])
    seconds = pa.chunked_array([pa.array([0, 1, 2, 0], pa.float32())])
    frames = IndexedFrames(
        pa.table({"video_id": names, "second": seconds, "hash": pa.chunked_array([hashes])})
    )
    assert frames.video_ids() == ["a", "b"]
    assert frames.holds("a", [0, 1, 2], hashes[:3])
    assert frames.holds("a", [1, 2], hashes[1:3])
    assert frames.holds("b", [0], hashes[3:])
    assert not frames.holds("a", [0, 1, 2], np.array([11, 12, 14], np.uint64))
    assert not frames.holds("a", [0, 1.5, 2], hashes[:3])
