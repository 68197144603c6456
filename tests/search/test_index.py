"""An index against an exact one in memory: what it finds, how it changes, and what it says of
damage."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
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


def test_rows_become_parts_of_the_index_and_many_parts_one(
    copy: tuple[Path, ExactIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few new rows wait outside of the index; more become a part of it."""
    monkeypatch.setattr(lance_upkeep, "MAX_PARTS", 3)
    folder, exact = copy
    index = LanceIndex(folder, SMALL)
    index.optimise()
    index.replace_shard("few", descriptors(["few/1.mp4"], seed=3))
    revision = index.status().revision
    index.optimise()
    assert index.status().unindexed_frames == FRAMES
    assert index.status().revision == revision
    index.delete_shard("few")
    seen = [index.status().parts]
    for number in range(4):
        rows = descriptors([f"new{number}/{video}.mp4" for video in range(20)], seed=10 + number)
        index.replace_shard(f"new{number}", rows)
        exact.replace_shard(f"new{number}", rows)
        index.optimise()
        seen.append(index.status().parts)
        agree(
            index.search_frames(vectors_of(rows)[:5], 4),
            exact.search_frames(vectors_of(rows)[:5], 4),
        )

    assert seen == [2, 3, 1, 2, 3]
    for number in range(4):
        exact.delete_shard(f"new{number}")


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


@pytest.mark.parametrize(
    "gone", [["a/7.mp4"], [f"b/{video}.mp4" for video in range(50)], "all but one"]
)
def test_no_file_has_vectors_of_what_was_forgotten(
    copy: tuple[Path, ExactIndex], gone: list[str] | str
) -> None:
    """One video, a whole fragment, and so many that no index is left: neither rows nor codes stay,
    and no older version."""
    folder, exact = copy
    rows = exact.shards
    names = (
        list(gone)
        if isinstance(gone, list)
        else [name for shard in "abc" for name in ids_of(rows[shard])][1:]
    )
    needles = [
        np.asarray(vector, np.float32).tobytes()
        for frames in rows.values()
        for name, vector in zip(frames["video_id"].to_pylist(), vectors_of(frames), strict=True)
        if name in names
    ]
    assert found_in(folder, needles[:1])
    codes = {path.parent.name for path in folder.rglob("*.idx")}
    LanceIndex(folder, SMALL).forget(names, {})
    index = LanceIndex(folder, SMALL)
    assert not found_in(folder, [*needles, *(name.encode() for name in names[1:])])
    assert not codes & {path.parent.name for path in folder.rglob("*.idx")}
    assert len(list(folder.glob("*.lance/_versions/*.manifest"))) == 1
    assert set(index.videos()) == {name for shard in "abc" for name in ids_of(rows[shard])} - set(
        names
    )
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


@pytest.mark.parametrize("kind", ["_versions/*", "data/*", "_indices/*/*"])
def test_files_that_are_cut_are_named(copy: tuple[Path, ExactIndex], kind: str) -> None:
    """An error that names the place and the hint, not a wrong answer or a crash."""
    folder, exact = copy
    for path in (folder / "frames.lance").glob(kind):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DamagedError, match="hapvr index build"):
        LanceIndex(folder, SMALL).search_frames(vectors_of(exact.shards["a"])[:2], 5)


def test_a_manifest_with_wrong_lengths_never_reaches_the_engine(
    copy: tuple[Path, ExactIndex],
) -> None:
    """The engine panics at some of them, which is not an Exception of Python's. Manifests of
    versions before the current one are not read."""
    folder, _ = copy
    message_checks = set()
    for path in (folder / "frames.lance" / "_versions").glob("*.manifest"):
        whole = path.read_bytes()
        for place in range(len(whole) - 40, len(whole), 2):
            path.write_bytes(whole[:place] + b"\x01\0" + whole[place + 2 :])
            try:
                LanceIndex(folder, SMALL)
            except DamagedError as error:
                message_checks.add("is not what was written" in str(error))

        path.write_bytes(whole)

    assert message_checks == {True}


def test_damage_that_a_search_does_not_see_is_found(copy: tuple[Path, ExactIndex]) -> None:
    """70 % of two files of vectors zeroed, a byte of the codes flipped, a file gone: each is a
    sentence."""
    folder = copy[0]
    index = LanceIndex(folder, SMALL)
    assert index.verify() == []
    first, second, third = sorted((folder / "frames.lance" / "data").iterdir())
    for path in (first, second):
        whole = path.read_bytes()
        start = len(whole) // 10
        path.write_bytes(whole[:start] + bytes(7 * start) + whole[8 * start :])

    codes = max(
        (folder / "frames.lance").glob("_indices/*/*"), key=lambda path: path.stat().st_size
    )
    whole = codes.read_bytes()
    codes.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    third.unlink()
    wrong = index.verify()
    assert len(wrong) == 4
    for path in (first, second, codes, third):
        problem = "is missing" if path == third else "is not what"
        assert any(
            path.name in text and problem in text and "hapvr index build" in text for text in wrong
        )


def zero(path: Path) -> None:
    """Keeps its size."""
    path.write_bytes(bytes(path.stat().st_size))


def flip_in_place(path: Path) -> None:
    """One bit, by the same inode, with the times of before, as a tool that repairs disks does."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))

    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_another(path: Path) -> None:
    """A file of the same kind, from elsewhere in the table."""
    source_file = next(one for one in sorted(path.parent.iterdir()) if one != path)
    shutil.copyfile(source_file, path)


def put_pipe(path: Path) -> None:
    """Whoever reads it waits for a writer."""
    path.unlink()
    os.mkfifo(path)


HARMS = (zero, flip_in_place, cut, Path.unlink, replace_by_another, put_pipe)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("kind", ["data", "_indices", "_versions"])
def test_a_damaged_file_lets_nobody_open_the_index(
    copy: tuple[Path, ExactIndex], kind: str, harm: Callable[[Path], object]
) -> None:
    """One sentence that names the place, for searches and for writers, which would store what they
    read under a new digest; also where the index was opened before."""
    folder, _ = copy
    LanceIndex(folder, SMALL)
    files = json.loads((folder / "index.json").read_text())["files"]
    harm(folder / next(name for name in files if name.startswith(f"frames.lance/{kind}/")))
    with pytest.raises(DamagedError, match=r"search: .*frames.lance.*hapvr index build"):
        LanceIndex(folder, SMALL)


def test_an_index_that_was_opened_before_is_not_read_again(
    copy: tuple[Path, ExactIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are the files of a change read by the first search, as its writer has read them; without
    a cache of the user's own every opening reads them."""
    folder, _ = copy
    read = list[str]()
    sha256 = DataRoot.sha256
    monkeypatch.setattr(
        DataRoot, "sha256", lambda root, name: read.append(name) or sha256(root, name)
    )
    index = LanceIndex(folder, SMALL)
    files = json.loads((folder / "index.json").read_text())["files"]
    assert sorted(read) == sorted(files)
    read.clear()
    LanceIndex(folder, SMALL)
    assert read == []
    index.replace_shard("d", descriptors(["d/0.mp4"], seed=9))
    assert read
    read.clear()
    LanceIndex(folder, SMALL)
    assert read == []
    os.utime(next((folder / "frames.lance" / "data").iterdir()))
    LanceIndex(folder, SMALL)
    assert len(read) == 1
    for place in (Path(os.environ["XDG_CACHE_HOME"]) / "hapvr" / "checked").iterdir():
        place.write_text("{")
    read.clear()
    LanceIndex(folder, SMALL)
    assert len(read) > 1
    (Path(os.environ["XDG_CACHE_HOME"]) / "hapvr" / "checked").chmod(0o777)
    read.clear()
    LanceIndex(folder, SMALL)
    assert len(read) > 1


@pytest.mark.parametrize(
    ("name", "value"), [("files", {}), ("shards", {}), ("version", 1)], ids=str
)
def test_a_state_of_another_table_is_named(
    copy: tuple[Path, ExactIndex], name: str, value: object
) -> None:
    index = LanceIndex(copy[0], SMALL)
    place = copy[0] / "index.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {name: value}))
    if name != "shards":
        with pytest.raises(DamagedError, match="is of another table"):
            LanceIndex(copy[0], SMALL)
    else:
        index = LanceIndex(copy[0], SMALL)
        assert any("is of another table" in text for text in index.verify())


@pytest.mark.parametrize("value", [None, [[1]], "x", math.nan], ids=str)
@pytest.mark.parametrize("name", ["revision", "version", "shards", "files"])
def test_a_wrong_value_of_the_state_is_named(tmp_path: Path, name: str, value: object) -> None:
    LanceIndex.create(tmp_path, DIMS, {}, SMALL)
    place = tmp_path / "index.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {name: value}))
    with pytest.raises(
        DamagedError, match=r"index\.json below .* is damaged \(.*hapvr index build"
    ):
        LanceIndex(tmp_path, SMALL)


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
