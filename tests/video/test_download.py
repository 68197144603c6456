"""Downloads from a server on this machine that is slow, cuts connections, lies and refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from yt_dlp.utils import DownloadError, ExtractorError, GeoRestrictedError

from hapvr.config import DownloadConfig
from hapvr.errors import ArgumentError
from hapvr.video.decode import probe_video
from hapvr.video.download import classify_failure, download_video, file_stem
from hapvr.video.sources import ManifestEntry
from tests.video.site import Site, serve

ONCE = DownloadConfig(retries=0, backoff_s=0)


@pytest.fixture
def site(videos) -> Iterator[Site]:
    """The site, up while the test runs."""
    with serve(videos.noise("served.mp4", num_frames=40).read_bytes()) as site:
        yield site


@pytest.mark.parametrize("path", ["/video.mp4", "/without-suffix", "/moved.mp4", "/a%20b.mp4?x=1&y=2"])
def test_download_video_saves_the_bytes_under_a_name_of_its_own(site, tmp_path, path):
    """The file is whole, is named after the id, and is a video."""
    result = site.get(path, tmp_path / "out")
    assert (result.status, result.reason, result.message) == ("ok", "", "")
    assert result.path is not None
    assert result.path.read_bytes() == site.data
    assert result.path.stem == file_stem(f"s{path}")
    assert probe_video(result.path).codec == "h264"


def test_download_video_does_not_fetch_twice(site, tmp_path):
    """A finished file is taken as it is."""
    first = site.get("/video.mp4", tmp_path)
    count = len(site.requests)
    assert site.get("/video.mp4", tmp_path) == first
    assert len(site.requests) == count


@pytest.mark.parametrize(
    ("path", "status", "reason", "num_attempts"),
    [
        ("/404/video.mp4", "unavailable", "http_404", 1),
        ("/403/video.mp4", "unavailable", "http_403", 1),
        ("/410", "unavailable", "http_410", 1),
        ("/429/video.mp4", "failed", "http_429", 4),
        ("/500/video.mp4", "failed", "http_500", 4),
        ("/page.html", "not_video", "not_video", 1),
    ],
)
def test_download_video_tells_what_is_gone_from_what_may_come_back(site, tmp_path, path, status, reason, num_attempts):
    """Refusals are final; overload and server errors are tried again as often as configured."""
    result = site.get(path, tmp_path)
    assert (result.status, result.reason, result.path) == (status, reason, None)
    assert path in result.message
    assert len(site.requests) == num_attempts


def test_download_video_waits_longer_each_time(site, tmp_path):
    """Retries back off, doubling; a server that recovers gives the video."""
    site.failures = 2
    waits = []
    entry = ManifestEntry("s/flaky", site.address + "/flaky.mp4")
    config = DownloadConfig(retries=3, backoff_s=0.5)
    result = download_video(entry, folder=tmp_path, config=config, sleep=waits.append)
    assert result.status == "ok"
    assert waits == [0.5, 1.0]


def test_download_video_resumes_where_a_connection_broke(site, tmp_path):
    """Each attempt goes on from the bytes that are there, in this run and in the next."""
    first = site.get("/cut.mp4", tmp_path, config=ONCE)
    assert first.status == "failed"
    [partial] = tmp_path.glob("*.part")
    saved = partial.stat().st_size
    assert 0 < saved < len(site.data)
    assert partial.read_bytes() == site.data[:saved]
    site.requests.clear()
    result = site.get("/cut.mp4", tmp_path, config=DownloadConfig(retries=30, backoff_s=0))
    assert result.status == "ok"
    assert result.path is not None
    assert result.path.read_bytes() == site.data
    assert ("/cut.mp4", saved) in site.requests


def test_download_video_does_not_believe_a_length(site, tmp_path):
    """A server that promises more bytes than it sends leaves no finished file."""
    result = site.get("/longer.mp4", tmp_path, config=ONCE)
    assert (result.status, result.path) == ("failed", None)


def test_download_video_gives_up_at_the_limits(site, tmp_path):
    """Too slow is a failure that a later run resumes; too large is final and leaves nothing behind."""
    slow = site.get("/slow.mp4", tmp_path / "slow", config=DownloadConfig(timeout_s=1, backoff_s=0))
    assert (slow.status, slow.reason) == ("failed", "timeout")
    large = site.get("/video.mp4", tmp_path / "large", config=DownloadConfig(max_bytes=1000, backoff_s=0))
    assert (large.status, large.reason) == ("too_large", "too_large")
    assert list((tmp_path / "large").iterdir()) == []


def test_download_video_reports_a_server_that_is_not_there(tmp_path):
    """No connection is a failure that may pass."""
    entry = ManifestEntry("s/x", "http://127.0.0.1:9/x.mp4")
    result = download_video(entry, folder=tmp_path, config=ONCE)
    assert (result.status, result.reason) == ("failed", "network")


def test_download_video_refuses_local_paths(tmp_path):
    """Files are never read through the downloader."""
    for uri in ("/etc/passwd", "file:///etc/passwd"):
        with pytest.raises(ArgumentError, match="no http"):
            download_video(ManifestEntry("s/x", uri), folder=tmp_path, config=ONCE)


def test_file_stem_cannot_be_steered():
    """Whatever an id holds, its file name is 32 hexadecimal digits, another one for another id."""
    stems = {file_stem(video_id) for video_id in ("a/b", "a/../../b", "a/%(id)s", "a/b ", "a/動画")}
    assert len(stems) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", stem) for stem in stems)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ExtractorError("Private video. Sign in if you've been granted access", expected=True),
            ("unavailable", "gone"),
        ),
        (ExtractorError("Video unavailable. This video has been removed", expected=True), ("unavailable", "gone")),
        (ExtractorError("Sign in to confirm your age", expected=True), ("unavailable", "gone")),
        (GeoRestrictedError("blocked in your country"), ("unavailable", "region")),
        (ExtractorError("Sign in to confirm you're not a bot", expected=True), ("failed", "network")),
        (OSError("connection reset"), ("failed", "network")),
    ],
)
def test_classify_failure_reads_what_sites_say(error, expected):
    """The cause decides, also when it is wrapped in a general error."""
    assert classify_failure(error) == expected
    assert classify_failure(DownloadError(str(error), (type(error), error, None))) == expected
