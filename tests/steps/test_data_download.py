"""The stage `videos` on lists of URLs: statuses, retries of what may pass, threads,
availability."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from hapvr.steps.frames import make_frames
from hapvr.steps.project import Project
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from tests.conftest import write_clip
from tests.steps.data_projects import folder_settings, open_project
from tests.video.site import Site, serve

KEY = "web-00000"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with one clip under every name."""
    with serve(write_clip(tmp_path / "served.mp4", seed=5, seconds=2).read_bytes()) as site:
        yield site


def web_project(folder: Path, site: Site, names: list[str]) -> Project:
    """A list of URLs of the site; ids are web/0, web/1 ... in its order."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{number},{site.address}/{name}" for number, name in enumerate(names)]
    (folder / "list.csv").write_text("video_id,url\n" + "\n".join(lines) + "\n")
    settings = folder_settings(folder, folder / "data", shard_videos=100)
    settings["sources"] = [{"kind": "list", "name": "web", "path": str(folder / "list.csv")}]
    settings["download"] = {"retries": 0}
    project = open_project(folder, settings)
    make_manifest(project)
    return project


def statuses(project: Project) -> list[str]:
    """Statuses of the shard's videos in their order."""
    return project.shard("videos", KEY).index()["status"].to_list()


NAMES = [
    "a.mp4",
    "404/gone.mp4",
    "403/no.mp4",
    "flaky.mp4",
    "page.html",
    "429/busy.mp4",
    "moved.mp4",
    "longer.mp4",
]
FOUND = ["ok", "unavailable", "unavailable", "failed", "not_video", "failed", "ok", "failed"]


@pytest.mark.slow
def test_only_failures_that_may_pass_are_tried_again(site: Site, tmp_path: Path) -> None:
    """A finished shard asks for nothing; a retry asks for failed videos alone and leaves the other
    rows as they are."""
    project = web_project(tmp_path, site, NAMES)
    site.failures = 1
    assert make_videos(project, KEY).num_ok == 2
    assert statuses(project) == FOUND
    first = project.shard("videos", KEY).index()
    site.requests.clear()
    assert not make_videos(project, KEY).done
    assert site.requests == []

    (tmp_path / "list.csv").write_text(f"video_id,url\n3,{site.address}/other.mp4\n")
    with pytest.warns(
        UserWarning, match="1 ids have other addresses now, e.g. web/3, and keep the old ones"
    ):
        make_manifest(project)

    (tmp_path / "list.csv").write_text("url\nfile.mp4\n")
    with pytest.warns(
        UserWarning, match="row 1: .* got 'file.mp4'. Correct that, or take it out of the sources"
    ):
        make_manifest(project)

    failed = {"/flaky.mp4", "/429/busy.mp4", "/longer.mp4"}
    make_videos(project, KEY, retry_failed=True, retry_gone=False)
    assert {path for path, _ in site.requests} == failed
    assert statuses(project) == [*FOUND[:3], "ok", *FOUND[4:]]
    second = project.shard("videos", KEY).index()
    kept = first.filter(pl.col("status") != "failed")
    assert second.filter(pl.col("video_id").is_in(kept["video_id"].to_list())).equals(kept)
    site.requests.clear()
    make_videos(project, KEY, retry_failed=True)
    assert {path for path, _ in site.requests} == failed - {"/flaky.mp4"} | {
        "/404/gone.mp4",
        "/403/no.mp4",
        "/page.html",
    }

    make_frames(project, KEY)
    frames = project.root.sha256(f"frames/{KEY}/data.parquet")
    Path(second["path"][3]).unlink()
    site.failures = 99  # and the site has it no more
    for step in (make_videos, make_frames):
        step(project, KEY, retry_failed=True)
    assert project.shard("videos", KEY).index().equals(second)
    assert project.root.sha256(f"frames/{KEY}/data.parquet") == frames
