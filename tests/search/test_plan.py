"""Plans of what to do about copies: a script that is run, on files with names that a shell could trip over."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import GroupMember, write_plan

NAMES = ["a $(touch own).mp4", "b'; touch own #.mp4", "-rf *.mp4", "new\nline `touch own`.mp4", "\udcff.mp4"]


def member(group: str, path: Path, *, keep: bool = False) -> GroupMember:
    data = path.read_bytes()
    file = VideoMetadata(path=path, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))
    return GroupMember(
        group=group, video_id=f"in/{path.stem!a}", medoid=keep, keep=keep, reason="", probability=1, metadata=file
    )


@pytest.fixture
def members(tmp_path: Path) -> list[GroupMember]:
    """One to keep, one of the same bytes, two others; and a pair in which none is kept."""
    folder = tmp_path / "videos of $HOME"
    folder.mkdir()
    for name, text in zip(NAMES, ["kept", "kept", "other", "more", "unsure"], strict=True):
        (folder / name).write_text(text)
    first, *others = (folder / name for name in NAMES)
    return [member("g", first, keep=True), *(member("g", one) for one in others[:3]), member("h", others[3])]


def test_the_script_acts_only_when_told_and_only_on_what_it_knows(members: list[GroupMember], tmp_path: Path) -> None:
    kept, same, other, more, unsure = (file.metadata.path for file in members if file.metadata.path is not None)
    script, aside = tmp_path / "plan.sh", tmp_path / "aside"
    write_plan(script, members)

    def run(*options: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", script, *options], cwd=tmp_path, env={**os.environ, "ASIDE": str(aside)}, capture_output=True
        )

    dry = run()
    assert (dry.returncode, dry.stdout.count(b"would:"), dry.stderr) == (0, 6, b"")
    assert not aside.exists()
    assert not same.samefile(kept)
    more.write_text("changed")
    done = run("--act")
    assert done.returncode == 1
    assert done.stderr.count(b"changed since") == 1
    assert same.samefile(kept)
    assert not other.exists()
    assert [one.read_text() for one in aside.iterdir()] == ["other"]
    assert [one.read_text() for one in (kept, more, unsure)] == ["kept", "changed", "unsure"]
    assert not list(tmp_path.rglob("own"))
    assert run("--act").stderr.count(b"left alone") == 2  # what was moved, and what was changed


def test_tables_say_what_could_be_done(members: list[GroupMember], tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", members)
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["keep", "link", "move", "move", "look"]
    assert {row["keep_sha256"] for row in rows[:4]} == {members[0].metadata.sha256}
    write_plan(tmp_path / "plan.csv", members)
    assert len((tmp_path / "plan.csv").read_text().split(",look,")) == 2
