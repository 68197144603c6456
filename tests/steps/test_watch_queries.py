"""Watch lists of queries: what they are called, and the copies that they keep."""

from pathlib import Path

import pytest

from hapvr.care.verify import verify_root
from hapvr.files import file_sha256
from hapvr.steps.project import Project
from hapvr.steps.watch_queries import LISTS, make_watch_list, watch_queries
from tests.steps.data_projects import folder_settings, open_project


def list_of(project: Project, name: str, content: bytes) -> str:
    """What a list of a query is called that has this name and content."""
    file = project.folder / "sent"
    file.write_bytes(content)
    return make_watch_list(project, file, name=name, sha256=file_sha256(file), max_bytes=1000)


@pytest.mark.parametrize(
    ("file", "called"),
    [
        ("My leak (2).MP4", "my-leak-2"),
        ("/srv/clips/leak.mp4", "leak"),
        ("in/leak.mp4", "leak"),
        ("__.mp4", "query"),
        (f"{'0' * 64}.mp4", "query"),
        ("\u05e1\u05e8\u05d8\u05d5\u05df.mp4", "\u05e1\u05e8\u05d8\u05d5\u05df"),
        ("b\udcff.mp4", "b-xff"),
        (f"{'a' * 250}.mp4", "a" * 40),
        ("../../etc/passwd", "passwd"),
        ("taken.mp4", "taken-2"),
    ],
    ids=[
        "spaces",
        "a path",
        "an id",
        "no letters",
        "a digest",
        "right to left",
        "no UTF-8",
        "long",
        "upwards",
        "as in the configuration",
    ],
)
def test_a_list_is_called_after_its_file(tmp_path: Path, file: str, called: str) -> None:
    settings = folder_settings(tmp_path, tmp_path / "data")
    settings["watch"] = {"lists": [{"name": "taken", "path": str(tmp_path)}]}
    assert list_of(open_project(tmp_path, settings), file, b"a clip") == called


def test_another_clip_of_the_same_name_has_a_number(tmp_path: Path) -> None:
    """The same clip has one list, whatever it is called."""
    project = open_project(tmp_path, folder_settings(tmp_path, tmp_path / "data"))
    names = [list_of(project, "leak.mp4", content) for content in (b"one", b"two", b"three")]
    assert names == ["leak", "leak-2", "leak-3"]
    assert list_of(project, "another.mp4", b"two") == "leak-2"
    assert project.root.list_folders(LISTS) == names


def test_a_damaged_copy_of_a_query_is_damage_and_is_not_searched_for(tmp_path: Path) -> None:
    """It would find nothing, without a word."""
    project = open_project(tmp_path, folder_settings(tmp_path, tmp_path / "data"))
    written = tmp_path / "clip.mp4"
    written.write_bytes(b"a clip")
    copy = project.root.local_path(f"{LISTS}/clip/{file_sha256(written)}.mp4")
    copy.parent.mkdir(parents=True)
    written.rename(copy)
    (query,) = watch_queries(project)
    assert not query.problem
    assert [check.state for check in verify_root(project.root)] == ["ok"]

    copy.write_bytes(b"another")
    (query,) = watch_queries(project)
    assert "is not what was copied there; remove the list" in query.problem
    (check,) = verify_root(project.root)
    assert check.kind == "watch_lists"
    assert check.key == "clip"
    assert check.state == "damaged"
    assert copy.name in check.message
