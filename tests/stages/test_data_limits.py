"""Full disks, roots that cannot be written, foreign manifests, other sampling: a clear refusal, and nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hapvr.errors import DataError
from hapvr.stages.frames import make_frames
from hapvr.stages.manifest import make_manifest
from hapvr.stages.project import Project
from hapvr.stages.videos import make_videos
from hapvr.stages.views import make_pseudo_labels, make_training_views
from hapvr.stages.whitening import make_whitening
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import read_manifest
from tests.conftest import CHECKOUT, write_clip
from tests.stages.data_projects import digests, folder_settings, open_project, small_disk
from tests.video.site import serve


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two clips, looked at."""
    for number in range(2):
        write_clip(tmp_path / "in" / f"{number}.mp4", seed=number, seconds=3)
    opened = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    make_manifest(opened)
    make_videos(opened, "in-00000")
    return opened


def test_a_full_disk_loses_nothing(project: Project, tmp_path: Path) -> None:
    """The stage fails with what to do, what was there stays readable, and a later run ends as if nothing had happened."""
    make_frames(project, "in-00000")
    calm = digests(tmp_path / "data")
    write_clip(tmp_path / "in" / "0.mp4", seed=7, seconds=3)
    make_videos(project, "in-00000")
    before = digests(tmp_path / "data")
    with small_disk(4000), pytest.raises(DataError, match=r"cannot write frames/in-00000/data.parquet .* Free space"):
        make_frames(project, "in-00000")
    assert digests(tmp_path / "data") == before
    assert make_frames(project, "in-00000").num_ok == 2
    assert digests(tmp_path / "data")["frames/in-00000/data.parquet"] != calm["frames/in-00000/data.parquet"]


@pytest.mark.slow
def test_a_full_disk_stops_downloads_and_keeps_their_parts(tmp_path: Path) -> None:
    """No video is marked as failed because of the disk; the next run resumes."""
    data = write_clip(tmp_path / "served.mp4", seed=5, seconds=6).read_bytes()
    with serve(data) as site:
        (tmp_path / "list.csv").write_text(f"url\n{site.address}/a.mp4\n")
        settings = folder_settings(tmp_path, tmp_path / "data", download={"retries": 0})
        settings["sources"] = [{"kind": "list", "name": "web", "path": str(tmp_path / "list.csv")}]
        project = open_project(tmp_path, settings)
        make_manifest(project)
        with small_disk(len(data) // 2), pytest.raises(DataError, match=r"cannot take more .* download.quota_bytes"):
            make_videos(project, "web-00000")
        assert project.shard("videos", "web-00000").provenance() is None
        assert make_videos(project, "web-00000").num_ok == 1


@pytest.mark.parametrize("root", ["a file/data", "/proc/hapvr"])
def test_a_data_root_that_cannot_be_written_is_named(tmp_path: Path, root: str) -> None:
    """The message has the root and what to change."""
    (tmp_path / "a file").write_text("no folder")
    write_clip(tmp_path / "in" / "0.mp4", seed=1, seconds=1)
    opened = open_project(tmp_path, folder_settings(tmp_path / "in", root))
    with pytest.raises(DataError, match=r"the data root .* cannot be written.*set data_root"):
        make_manifest(opened)


def test_a_manifest_of_another_version_is_refused(project: Project, tmp_path: Path) -> None:
    """A later format is neither read wrongly nor appended to."""
    path = tmp_path / "data/manifest/in-00000/rows.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"hapvr.manifest_version": b"9"}), path)
    for read in (lambda: read_manifest(project.root), lambda: make_manifest(project)):
        with pytest.raises(DataError, match=r"in-00000.* version 9 .* reads version 1: use the release that wrote it"):
            read()
    path.write_bytes(b"PAR1 and then nonsense")
    with pytest.raises(DataError, match=r"in-00000/rows.parquet .* is damaged"):
        read_manifest(project.root)


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    """It says what it waits for, and goes on when the first is done."""
    root = DataRoot(tmp_path)
    held, release, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with root.lock("features/in-00000"):
            held.set()
            release.wait()
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    held.wait()
    threading.Timer(0.2, release.set).start()
    with (
        pytest.warns(UserWarning, match="features/in-00000 is being made by another process"),
        root.lock("features/in-00000"),
    ):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_of_a_killed_process_holds_nobody(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Its file stays, also with a time that lies years ahead, and the next process takes the lock at once."""
    code = (
        "import sys, time\nfrom hapvr.storage.filesystem import DataRoot\n"
        "with DataRoot(sys.argv[1]).lock('features/in-00000'):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.wait()
    (left,) = (tmp_path / ".locks").iterdir()
    os.utime(left, (4e9, 4e9))
    with DataRoot(tmp_path).lock("features/in-00000"):
        assert not recwarn.list


def test_a_full_disk_is_named_by_views_and_labels(project: Project, tmp_path: Path) -> None:
    """Also where rows are written in small pieces, the error has the file and what to do, and nothing is left."""
    make_frames(project, "in-00000")
    make_whitening(project, ["in-00000"])
    before = digests(tmp_path / "data")
    with small_disk(2000), pytest.raises(DataError, match=r"cannot write \w+/in-00000/data.parquet .* Free space"):
        make_training_views(project, "in-00000")
    with small_disk(2000), pytest.raises(DataError, match=r"cannot write \w+/in-00000/data.parquet .* Free space"):
        make_pseudo_labels(project, "in-00000")
    assert digests(tmp_path / "data") == before
    assert list((tmp_path / "data").rglob("*.part")) == []


def test_a_second_look_at_the_sources_reads_each_shard_of_the_manifest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 shards: a file opened each, no shard looked up twice, however many rows there are, and nothing written."""
    addresses = [f"http://127.0.0.1/{number}.mp4" for number in range(2000)]
    (tmp_path / "list.csv").write_text("\n".join(["url", *addresses]))
    settings = folder_settings(tmp_path, tmp_path / "data", shard_videos=40)
    settings["sources"] = [{"kind": "list", "name": "web", "path": str(tmp_path / "list.csv")}]
    project = open_project(tmp_path, settings)
    first = make_manifest(project)
    assert len(first.new_shards) == 50
    asked: Counter[tuple[str, str]] = Counter()
    for method in ("open", "exists", "write"):
        original = getattr(DataRoot, method)

        def counted(root: DataRoot, name: str, *, method: str = method, original: Any = original, **more: Any) -> Any:
            asked[method, name] += 1
            return original(root, name, **more)

        monkeypatch.setattr(DataRoot, method, counted)
    assert make_manifest(project) == replace(first, new_shards=())
    names = [f"manifest/{shard}/rows.parquet" for shard in first.shards]
    assert {name: count for (method, name), count in asked.items() if method == "open"} == dict.fromkeys(names, 1)
    assert {name: count for (method, name), count in asked.items() if method == "exists"} == dict.fromkeys(names, 1)
    assert not any(method == "write" for method, _ in asked)
