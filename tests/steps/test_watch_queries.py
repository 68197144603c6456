"""Copies of queries that watch lists keep."""

from pathlib import Path

from hapvr.care.verify import verify_root
from hapvr.files import file_sha256
from hapvr.steps.watch_queries import LISTS, watch_queries
from tests.steps.data_projects import folder_settings, open_project


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
