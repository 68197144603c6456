"""Plans of what to do about copies: a script that is run, on files with names that a shell could
trip over, and that puts everything back."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import GroupMember
from hapvr.search.plan import aside_name, moved_paths, needless, write_plan
from hapvr.video.folders import ASIDE_MARKER

NAMES = [
    "a $(touch own).mp4",
    "b'; touch own #.mp4",
    "-rf *.mp4",
    "new\nline\t\\n `touch own`.mp4",
    "\udcff.mp4",
]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def member(group: str, path: Path, *, keep: bool = False) -> GroupMember:
    data = path.read_bytes()
    file = VideoMetadata(path=path, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))
    return GroupMember(
        group=group,
        video_id=f"in/{path.stem!a}",
        medoid=keep,
        keep=keep,
        reason="",
        probability=1,
        metadata=file,
    )


def members_in(parent: Path) -> list[GroupMember]:
    """One to keep, one of the same bytes, two others; and a pair in which none is kept."""
    folder = parent / "videos of $HOME"
    folder.mkdir()
    for name, text in zip(NAMES, ["kept", "kept", "other", "more", "unsure"], strict=True):
        (folder / name).write_text(text)
    files = [folder / name for name in NAMES]
    copies = [member("g", file) for file in files[1:4]]
    return [member("g", files[0], keep=True), *copies, member("h", files[4])]


@pytest.fixture
def members(tmp_path: Path) -> list[GroupMember]:
    return members_in(tmp_path)


def script_in(folder: Path) -> Run:
    """Calls the script plan.sh of a folder."""

    def called(*options: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", folder / "plan.sh", *options],
            cwd="/",
            env={**os.environ, **variables},
            capture_output=True,
        )

    return called


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return script_in(tmp_path)


def state(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Name -> bytes, links, mode and time of change of all files below."""
    return {
        str(file.relative_to(folder)): (
            file.read_bytes(),
            file.stat().st_nlink,
            file.stat().st_mode,
            file.stat().st_mtime_ns,
        )
        for file in folder.rglob("*")
        if file.is_file()
    }


@dataclass(frozen=True)
class Acted:
    """What a plan did: without --act, with it after one of its files was changed, and once more."""

    kept: Path
    same: Path
    """with the bytes of `kept`"""
    different: Path
    changed: Path
    """since the plan was written"""
    unsure: Path
    aside: Path
    told: subprocess.CompletedProcess[bytes]
    """the call without --act"""
    left_by_telling: list[Path]
    """what that call wrote"""
    was_linked_by_telling: bool
    done: subprocess.CompletedProcess[bytes]
    again: subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> Acted:
    folder = tmp_path_factory.mktemp("acted")
    members = members_in(folder)
    run = script_in(folder)
    paths = [file.metadata.path for file in members if file.metadata.path is not None]
    kept, same, different, changed, unsure = paths
    aside = folder / "aside"
    write_plan(folder / "plan.sh", members)
    told = run(ASIDE=str(aside))
    left_by_telling = [path for path in (aside, *folder.glob("*.record")) if path.exists()]
    was_linked_by_telling = same.samefile(kept)
    changed.write_text("changed")
    done = run("--act", ASIDE=str(aside))
    again = run("--act", ASIDE=str(aside))
    return Acted(
        kept,
        same,
        different,
        changed,
        unsure,
        aside,
        told,
        left_by_telling,
        was_linked_by_telling,
        done,
        again,
    )


def test_without_act_the_script_tells_what_it_would_do(acted: Acted) -> None:
    """And does nothing."""
    assert acted.told.returncode == 0
    assert acted.told.stdout.count(b"would:") == 6
    assert acted.told.stderr == b""
    assert acted.left_by_telling == []
    assert not acted.was_linked_by_telling


def test_a_file_that_has_changed_since_is_left_and_named(acted: Acted) -> None:
    assert acted.done.returncode == 1
    assert acted.done.stderr.count(b"changed since") == 1
    assert acted.changed.read_text() == "changed"


def test_a_copy_of_the_same_bytes_is_linked(acted: Acted) -> None:
    assert acted.same.samefile(acted.kept)
    assert acted.kept.read_text() == "kept"


def test_a_copy_of_other_bytes_is_moved_aside(acted: Acted) -> None:
    assert not acted.different.exists()
    moved = [path for path in acted.aside.iterdir() if path.name != ASIDE_MARKER]
    assert [path.read_text() for path in moved] == ["other"]


def test_a_group_of_which_none_is_kept_is_left_alone(acted: Acted) -> None:
    assert acted.unsure.read_text() == "unsure"


def test_nothing_in_a_name_is_run(acted: Acted) -> None:
    assert not list(acted.aside.parent.rglob("own"))


def test_a_second_call_leaves_alone_what_was_moved_and_what_was_changed(acted: Acted) -> None:
    assert acted.again.stderr.count(b"left alone") == 2


def test_everything_can_be_put_back(members: list[GroupMember], tmp_path: Path, run: Run) -> None:
    """Bytes, times, modes and links are those of before; nothing else is left. Another call finds
    nothing to do, and the plan can be followed again."""
    folder = tmp_path / "videos of $HOME"
    os.utime(folder / NAMES[1], ns=(10**18, 10**18 + 123_456_789))
    (folder / NAMES[1]).chmod(0o640)
    before = state(folder)
    write_plan(tmp_path / "plan.sh", members)
    assert run("--undo").returncode == 1
    for _ in range(2):
        done = run("--act")
        assert done.returncode == 0
        assert done.stderr == b""
        assert state(folder) != before
        record = (tmp_path / "plan.sh.record").read_text(errors="surrogateescape")
        assert [line.split("\t")[0] for line in record.splitlines()] == ["linked", "moved", "moved"]
        undone = run("--undo")
        assert undone.returncode == 0
        assert undone.stderr == b""
        assert state(folder) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.sh", folder.name]


def test_undo_replaces_nothing(members: list[GroupMember], tmp_path: Path, run: Run) -> None:
    """Where there is another file again, both stay, and a later call can put it back."""
    moved_file = members[2].metadata.path
    assert moved_file is not None
    write_plan(tmp_path / "plan.sh", members)
    assert run("--act").returncode == 0
    moved_file.write_text("new")
    undone = run("--undo")
    assert undone.returncode == 1
    assert b"there is another file again" in undone.stderr
    assert moved_file.read_text() == "new"
    assert len((tmp_path / "plan.sh.record").read_text().splitlines()) == 1
    moved_file.unlink()
    assert run("--undo").returncode == 0
    assert moved_file.read_text() == "other"


RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "lost": lambda record: b"",
    "cut within a line": lambda record: record[:-20],
    "cut within the first line": lambda record: record[:20],
    "another byte": lambda record: record.replace(b"moved", b"mowed"),
    "another place": lambda record: record.replace(b"videos of", b"videos 0f"),
    "line ends of Windows": lambda record: record.replace(b"\n", b"\r\n"),
    "other text behind it": lambda record: record + b"\n\t\nhello",
    "two lines in one": lambda record: record.replace(b"\n", b"", 1),
    "each line twice": lambda record: record + record,
}


@pytest.mark.parametrize("case", RECORDS)
def test_what_was_moved_is_put_back_whatever_became_of_the_record(
    case: str, members: list[GroupMember], tmp_path: Path, run: Run
) -> None:
    """And nothing else is touched; links stay where no line tells of them, and damage is told."""
    folder = tmp_path / "videos of $HOME"
    before = {name: values[0] for name, values in state(folder).items()}
    write_plan(tmp_path / "plan.sh", members)
    assert run("--act").returncode == 0
    record = tmp_path / "plan.sh.record"
    damaged = RECORDS[case](record.read_bytes())
    record.write_bytes(damaged)
    undone = run("--undo")
    assert {name: values[0] for name, values in state(folder).items()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (
        ["plan.sh", folder.name]
        if case in ("lost", "each line twice")
        else ["plan.sh", "plan.sh.record", folder.name]
    )
    is_told = b"a line of the record is damaged" in undone.stderr
    assert is_told is (case not in ("lost", "each line twice"))


def test_a_plan_that_is_followed_again_after_a_full_disk_keeps_its_record(
    members: list[GroupMember], tmp_path: Path, run: Run
) -> None:
    """A line that was cut does not spoil the next one."""
    folder = tmp_path / "videos of $HOME"
    before = state(folder)
    write_plan(tmp_path / "plan.sh", members)
    (tmp_path / "plan.sh.record").write_bytes(b"moved\tabc")
    assert run("--act").returncode == 0
    assert run("--undo").returncode == 1
    assert state(folder) == before
    assert (tmp_path / "plan.sh.record").read_bytes() == b"moved\tabc\n"


@dataclass(frozen=True)
class Crowd:
    """Two files of one name, even of the same bytes, and names that file systems just allow, in
    three folders; and a plan that keeps the first of them."""

    folder: Path
    run: Run

    def states(self) -> dict[str, dict[str, tuple[bytes, int, int, int]]]:
        return {name: state(self.folder / name) for name in "abc"}


@pytest.fixture
def crowd(tmp_path: Path, run: Run) -> Crowd:
    longest = "ä" * 123 + ".mp4"
    texts = {
        "a/clip.mp4": "kept",
        "b/clip.mp4": "other",
        "c/clip.mp4": "other",
        f"c/{longest}": "third",
        "c/" + "y" * 246 + ".mp4": "kept",
    }
    for place, text in texts.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)

    files = sorted(tmp_path.rglob("*.mp4"))
    write_plan(
        tmp_path / "plan.sh",
        [member("g", file, keep=number == 0) for number, file in enumerate(files)],
    )
    return Crowd(tmp_path, run)


def test_a_dry_run_names_each_long_name_that_would_be_shortened(crowd: Crowd) -> None:
    dry_run = crowd.run()
    assert dry_run.returncode == 0
    assert dry_run.stdout.count(b"a long name is shortened to ") == 1


def test_equal_names_and_long_names_are_moved(crowd: Crowd) -> None:
    """Each keeps its suffix and takes no other's place."""
    done = crowd.run("--act")
    assert done.returncode == 0
    assert done.stderr == b""
    aside = crowd.folder / "copies-aside"
    moved = [path.name for path in aside.iterdir() if path.name != ASIDE_MARKER]
    assert len(moved) == 3
    assert all(name.endswith(".mp4") for name in moved)


def test_equal_names_and_long_names_go_back(crowd: Crowd) -> None:
    before = crowd.states()
    assert crowd.run("--act").returncode == 0
    assert crowd.run("--undo").returncode == 0
    assert crowd.states() == before


@pytest.mark.parametrize("name", ["x" * 251 + ".mp4", "ä" * 125 + ".mp4", "\udcff" * 255, "a.mp4"])
def test_names_stay_below_the_limit_of_file_systems(name: str) -> None:
    encoded_name = os.fsencode(aside_name(Path("folder") / name, "0" * 64))
    assert len(encoded_name) <= 255
    assert encoded_name.endswith(os.fsencode(Path(name).suffix))


def test_tables_say_what_could_be_done(members: list[GroupMember], tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", members)
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["keep", "link", "move", "move", "look"]
    assert {row["keep_sha256"] for row in rows[:4]} == {members[0].metadata.sha256}
    assert moved_paths(members) == [row["path"] for row in rows if row["action"] == "move"]
    write_plan(tmp_path / "plan.csv", members)
    assert len((tmp_path / "plan.csv").read_text().split(",look,")) == 2


def test_equal_files_are_linked_where_no_copy_is_named_to_keep(tmp_path: Path, run: Run) -> None:
    """Whichever of them is kept; the copy of other bytes is for a person to look at."""
    files = [tmp_path / name for name in ("a.mp4", "b.mp4", "c.mp4")]
    for file, text in zip(files, ("same", "same", "other"), strict=True):
        file.write_text(text)
    members = [member("g", file) for file in files]
    members[1] = replace(members[1], same_file_as=members[0].video_id)
    write_plan(tmp_path / "plan.json", members)
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["look", "link", "look"]
    assert rows[1]["keep_path"] == str(files[0])

    write_plan(tmp_path / "plan.sh", members)
    assert run("--act").returncode == 0
    assert files[1].samefile(files[0])
    assert files[2].read_text() == "other"


def test_nothing_is_linked_to_a_file_that_is_away(tmp_path: Path) -> None:
    """Such as one on a drive that is not connected."""
    files = [tmp_path / name for name in ("a.mp4", "b.mp4")]
    for file in files:
        file.write_text("same")

    members = [member("g", file) for file in files]
    members[1] = replace(members[1], same_file_as=members[0].video_id)
    files[0].unlink()
    write_plan(tmp_path / "plan.json", members)
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["look", "look"]


def test_hard_links_are_not_more_than_needed(members: list[GroupMember], tmp_path: Path) -> None:
    """Neither before nor after a plan; they are left alone."""
    kept = members[0].metadata.path
    same = members[1].metadata.path
    assert kept is not None
    assert same is not None
    assert len(needless(members[:4])) == 3
    same.unlink()
    same.hardlink_to(kept)
    assert len(needless(members[:4])) == 2
    write_plan(tmp_path / "plan.json", members[:2])
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["keep", "linked"]
    unnamed = [member("g", kept), member("g", same)]
    assert len(needless(unnamed)) == 0
