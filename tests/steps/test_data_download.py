"""The stage `videos` on lists of URLs: statuses, retries of what may pass, threads,
availability."""

from collections.abc import Iterator
from dataclasses import dataclass
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


def videos_of(project: Project) -> pl.DataFrame:
    """The shard's videos in their order."""
    return project.shard("videos", KEY).index()


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


MAY_PASS = {"/flaky.mp4", "/429/busy.mp4", "/longer.mp4"}
GONE = {"/404/gone.mp4", "/403/no.mp4", "/page.html"}


@dataclass(frozen=True)
class Tries:
    """What came of a list of URLs that was fetched, asked for again, and retried twice, once
    without what is gone."""

    first: pl.DataFrame
    """the videos after the first try"""
    asked_again: list[str]
    """of the site, by a shard that was finished"""
    retried: list[str]
    """of the site, by a retry without what is gone"""
    second: pl.DataFrame
    """the videos after that retry"""
    retried_gone: list[str]
    """of the site, by a retry of all that failed"""


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> Tries:
    folder = tmp_path_factory.mktemp("tries")
    with serve(write_clip(folder / "served.mp4", seed=5, seconds=2).read_bytes()) as site:
        project = web_project(folder, site, NAMES)
        site.failures = 1

        def asked(**options: bool) -> list[str]:
            site.requests.clear()
            make_videos(project, KEY, **options)
            return [path for path, _ in site.requests]

        asked()
        first = videos_of(project)
        asked_again = asked()
        retried = asked(retry_failed=True, retry_gone=False)
        second = videos_of(project)
        return Tries(first, asked_again, retried, second, asked(retry_failed=True))


@pytest.mark.slow
def test_what_cannot_be_fetched_has_its_status(tries: Tries) -> None:
    assert tries.first["status"].to_list() == FOUND


@pytest.mark.slow
def test_a_finished_shard_asks_the_site_for_nothing(tries: Tries) -> None:
    assert tries.asked_again == []


@pytest.mark.slow
def test_only_failures_that_may_pass_are_tried_again(tries: Tries) -> None:
    assert set(tries.retried) == MAY_PASS


@pytest.mark.slow
def test_a_retry_changes_the_rows_of_failures_alone(tries: Tries) -> None:
    """One of them passes."""
    assert tries.second["status"].to_list() == [*FOUND[:3], "ok", *FOUND[4:]]
    kept = tries.first.filter(pl.col("status") != "failed")
    assert tries.second.filter(pl.col("video_id").is_in(kept["video_id"].to_list())).equals(kept)


@pytest.mark.slow
def test_what_is_gone_is_tried_again_where_it_is_asked_for(tries: Tries) -> None:
    assert set(tries.retried_gone) == MAY_PASS - {"/flaky.mp4"} | GONE


@pytest.mark.parametrize(
    ("listed", "warning"),
    [
        (
            "video_id,url\n0,{site}/other.mp4\n",
            "1 ids have other addresses now, e.g. web/0, and keep the old ones",
        ),
        (
            "url\nfile.mp4\n",
            "row 1: .* got 'file.mp4'. Correct that, or remove it from the sources",
        ),
    ],
    ids=["another address", "no address"],
)
def test_a_list_that_says_otherwise_now_changes_nothing(
    site: Site, tmp_path: Path, listed: str, warning: str
) -> None:
    project = web_project(tmp_path, site, ["a.mp4"])
    before = project.root.sha256(f"manifest/{KEY}/rows.parquet")
    (tmp_path / "list.csv").write_text(listed.format(site=site.address))
    with pytest.warns(UserWarning, match=warning):
        make_manifest(project)
    assert project.root.sha256(f"manifest/{KEY}/rows.parquet") == before


@pytest.mark.slow
def test_a_retry_keeps_the_frames_of_a_download_that_is_gone_here_and_there(
    site: Site, tmp_path: Path
) -> None:
    project = web_project(tmp_path, site, ["flaky.mp4"])
    make_videos(project, KEY)
    make_frames(project, KEY)
    videos = videos_of(project)
    frames = project.root.sha256(f"frames/{KEY}/data.parquet")
    Path(videos["path"][0]).unlink()
    site.failures = 99  # the site does not give it any more
    make_videos(project, KEY, retry_failed=True)
    make_frames(project, KEY, retry_failed=True)
    assert videos_of(project).equals(videos)
    assert project.root.sha256(f"frames/{KEY}/data.parquet") == frames
