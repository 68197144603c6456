"""Downloads from a server on this machine that is slow, cuts connections, lies and refuses."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from filelock import FileLock
from yt_dlp.networking.exceptions import TransportError
from yt_dlp.utils import DownloadError, ExtractorError, GeoRestrictedError

from hapvr.errors import ArgumentError
from hapvr.video import download
from hapvr.video.decode import probe_video
from hapvr.video.download import Downloader, file_stem, remove_fetched
from hapvr.video.download_failures import RefusedError, classify_failure
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry
from hapvr.workers import open_pool
from tests.video.conftest import VideoWriter
from tests.video.site import Site, serve

ONCE = DownloadConfig(retries=0, workers=1)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Site]:
    """The site, up for all tests, which share the processes of equal configurations."""
    videos = VideoWriter(tmp_path_factory.mktemp("served"))
    with serve(videos.noise("served.mp4", num_frames=40).read_bytes()) as site:
        yield site


@pytest.fixture
def site(served) -> Site:
    """The site, with nothing remembered."""
    served.requests.clear()
    served.failures = 0
    return served


@pytest.mark.parametrize(
    "path", ["/video.mp4", "/without-suffix", "/moved.mp4", "/a%20b.mp4?x=1&y=2"]
)
def test_download_video_saves_the_bytes_under_a_name_of_its_own(site, tmp_path, path):
    """The file is whole, is named after the id, is a video, and is not fetched twice."""
    result = site.get(path, tmp_path / "out")
    assert result.status == "ok"
    assert result.reason == ""
    assert result.message == ""
    assert result.path.read_bytes() == site.data
    assert result.path.stem == file_stem(f"s{path}")
    assert probe_video(result.path).codec == "h264"
    site.requests.clear()
    assert site.get(path, tmp_path / "out") == result
    assert site.requests == []


@pytest.mark.parametrize(
    ("path", "status", "reason", "num_attempts"),
    [
        ("/404/video.mp4", "unavailable", "http_404", 1),
        ("/429/video.mp4", "failed", "http_429", 4),
        ("/500/video.mp4", "failed", "http_500", 4),
        ("/page.html", "not_video", "not_video", 1),
    ],
)
def test_download_video_tells_what_is_gone_from_what_may_come_back(
    site, tmp_path, path, status, reason, num_attempts
):
    """Refusals are final; overload and server errors are tried again as often as configured."""
    result = site.get(path, tmp_path)
    assert result.status == status
    assert result.reason == reason
    assert result.path is None
    assert path in result.message
    assert len(site.requests) == num_attempts


@pytest.mark.slow
def test_download_video_resumes_where_a_connection_broke(site, tmp_path):
    """Each attempt goes on from the bytes that are there, in this run and in the next."""
    first = site.get("/cut.mp4", tmp_path, config=ONCE)
    assert first.status == "failed"
    [partial] = tmp_path.glob("*.part")
    saved = partial.stat().st_size
    assert 0 < saved < len(site.data)
    assert partial.read_bytes() == site.data[:saved]
    site.requests.clear()
    result = site.get("/cut.mp4", tmp_path, config=DownloadConfig(retries=30, workers=1))
    assert result.status == "ok"
    assert result.path.read_bytes() == site.data
    assert ("/cut.mp4", saved) in site.requests


@pytest.mark.slow
def test_download_video_gives_up_at_the_limits(site, tmp_path):
    """Too slow is a failure that a later run resumes; too large is final and leaves nothing
    behind."""
    slow = site.get("/slow.mp4", tmp_path / "slow", config=DownloadConfig(timeout_s=4, workers=1))
    assert slow.status == "failed"
    assert slow.reason == "timeout"
    cookies = tmp_path / "cookies.txt"
    cookies.write_text(
        text := "# Netscape HTTP Cookie File\n# mine\n127.0.0.1\tFALSE\t/\tFALSE\t0\tname\tvalue\n"
    )
    config = DownloadConfig(max_bytes=1000, workers=1, cookies_file=cookies)
    large = site.get("/video.mp4", tmp_path / "large", config=config)
    assert cookies.read_text() == text
    assert large.status == "too_large"
    assert large.reason == "too_large"
    assert list((tmp_path / "large").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "timeout_s", "status", "reason"),
    [
        ("/endless/video.mp4", 50, "too_large", "too_large"),
        ("/endless/headers.mp4", 5, "failed", "timeout"),
        ("/live.m3u8", 50, "failed", "live"),
    ],
)
def test_no_answer_takes_more_than_the_limits(site, tmp_path, path, timeout_s, status, reason):
    """Answers that never end cost bounded time, disk, and memory of a process that is not this
    one."""
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    config = DownloadConfig(retries=0, timeout_s=timeout_s, max_bytes=10_000_000, workers=1)
    result = site.get(path, tmp_path, config=config)
    assert result.status == status
    assert result.reason == reason
    assert result.path is None
    assert time.monotonic() - started < 60
    assert psutil.Process().memory_info().rss - before < 2**27
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= config.max_bytes
    assert site.get("/video.mp4", tmp_path, config=config).status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/locked.m3u8", "/stream.m3u8"])
def test_no_other_program_is_started(site, tmp_path, monkeypatch, path):
    """Streams that yt-dlp would hand to ffmpeg are refused, though a program of that name is
    there."""
    for name in ("ffmpeg", "ffprobe"):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!/bin/sh\necho started >> {tmp_path}/started\necho ffmpeg version 7.0\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=os.pathsep)
    with Downloader(ONCE) as downloader:  # its process starts with this path
        result = downloader.download(
            ManifestEntry("s/x", site.address + path), folder=tmp_path / "out"
        )

    assert (result.status, result.reason) in {("unavailable", "unsupported"), ("ok", "")}
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/stream.m3u8", "/video.mp4"])
def test_what_a_killed_download_left_is_no_video(site, tmp_path, path):
    """Pieces are fetched whole, whatever a killed run left of them."""
    kinds = (
        (".mp4.part-Frag1", ".mp4.ytdl"),
        (".mp4.part-Frag1.part",),
        (".mp4",),
        (".webm.part-Frag0",),
    )
    for number, leftovers in enumerate(kinds):
        folder = tmp_path / str(number)
        folder.mkdir()
        for suffix in leftovers:
            (folder / f"{file_stem(f's{path}')}.new{suffix}").write_bytes(site.data[:999])
        result = site.get(path, folder)
        assert result.path.read_bytes() == site.data
        assert sorted(file.suffix for file in folder.iterdir()) == [".json", ".mp4"]


def test_a_download_waits_for_the_process_of_a_killed_run(site, tmp_path):
    """Two processes that write one partial file would spoil it."""
    left_by_a_kill = tmp_path / f"{file_stem('s/video.mp4')}.lock"
    with ThreadPoolExecutor(1) as threads:
        with FileLock(left_by_a_kill):
            download = threads.submit(site.get, "/video.mp4", tmp_path)
            with pytest.raises(TimeoutError):
                download.result(timeout=2)
            assert site.requests == []

        assert download.result().status == "ok"

    assert not left_by_a_kill.exists()


def test_only_what_the_record_describes_is_replaced(site, tmp_path):
    """A file of ours that changed, one that somebody put there, and a link are set aside under
    another name."""
    mine = tmp_path / "mine.mp4"
    mine.write_bytes(b"mine")
    first = site.get("/video.mp4", tmp_path).path
    for change in (
        lambda: first.write_bytes(b"edited"),
        lambda: (first.unlink(), first.symlink_to(mine)),
    ):
        change()
        assert site.get("/video.mp4", tmp_path).path == first
        assert first.read_bytes() == site.data

    first.with_suffix(".json").write_text('{"file": "../mine.mp4", "num_bytes": 4, "sha256": ""}')
    assert site.get("/video.mp4", tmp_path).path == first
    aside = sorted(path.read_bytes() for path in tmp_path.glob("*.damaged*"))
    assert aside == sorted([b"edited", b"mine", site.data])
    assert mine.read_bytes() == b"mine"


def test_only_what_was_fetched_of_a_video_is_removed(site, tmp_path):
    """With record and pieces; the file of another video, and one that was set aside, stay."""
    other_path = site.get("/without-suffix", tmp_path).path
    first = site.get("/video.mp4", tmp_path).path
    first.with_suffix(".new.mp4.part").write_bytes(b"piece")
    aside = first.with_suffix(".mp4.damaged")
    aside.write_bytes(b"somebody's")
    remove_fetched("s/video.mp4", tmp_path)
    remove_fetched("s/video.mp4", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(
        [other_path, other_path.with_suffix(".json"), aside]
    )


def connects(address: tuple[str, int], *, local: bool) -> str:
    """In a download process: what comes of a connection while it fetches from the internet, or from
    this machine."""
    download._may_go_local = local
    try:
        socket.create_connection(address).close()
    except RefusedError as error:
        return str(error.args[1])

    return "connected"


def test_an_address_of_the_internet_does_not_lead_into_the_local_network(site):
    """A redirect to this machine is refused where the connection is made; a source that lies here
    may be read."""
    address = ("127.0.0.1", int(site.address.rpartition(":")[2]))
    with open_pool(workers=1, limits={}, prepare=download.guard_process) as pool:
        outcomes = [
            pool.schedule(connects, args=(address,), kwargs={"local": local})
            for local in (False, True)
        ]
        assert [outcome.result() for outcome in outcomes] == ["local_address", "connected"]

    hosts = (
        "127.0.0.1",
        "localhost",
        "::1",
        "10.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "fec0::1",
        "ff02::1",
    )
    assert [host for host in hosts if not download._is_local(host)] == []
    assert [
        host
        for host in ("8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808")
        if download._is_local(host)
    ] == []


@pytest.mark.parametrize(("name", "opened"), [("NO_PROXY", False), ("HTTP_PROXY", True)])
def test_only_a_proxy_opens_the_local_network(monkeypatch, tmp_path, name, opened):
    """It may lie there; names that are to be asked without one open nothing."""
    monkeypatch.setattr(download, "_may_go_local", False)  # as it is afterwards
    monkeypatch.setattr(download.yt_dlp.YoutubeDL, "extract_info", lambda *_, **__: {})
    for variable in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv(name, "localhost")
    download._fetch("http://example.org/a.mp4", tmp_path / "a", ONCE, 0, 1)
    assert download._may_go_local == opened


@pytest.mark.parametrize("uri", ["/etc/passwd", "file:///etc/passwd"])
def test_download_video_refuses_local_paths(tmp_path, uri):
    """Files are never read through the downloader."""
    with Downloader(ONCE) as downloader, pytest.raises(ArgumentError, match="is not an http"):
        downloader.download(ManifestEntry("s/x", uri), folder=tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ExtractorError("Private video. Sign in if you were granted access", expected=True),
            ("unavailable", "gone"),
        ),
        (
            ExtractorError("Video unavailable. This video has been removed", expected=True),
            ("unavailable", "gone"),
        ),
        (ExtractorError("Sign in to confirm your age", expected=True), ("unavailable", "gone")),
        (GeoRestrictedError("blocked in your country"), ("unavailable", "gone")),
        (
            ExtractorError("Sign in to confirm you're not a bot", expected=True),
            ("failed", "network"),
        ),
        (OSError("connection reset"), ("failed", "network")),
        (TransportError("ffmpeg-talk: Remote end closed connection"), ("failed", "network")),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "in a general error"])
def test_classify_failure_reads_what_sites_say(error, expected, wrapped):
    """The cause decides."""
    if wrapped:
        error = DownloadError(str(error), (type(error), error, None))
    result = classify_failure(error, max_bytes=1)
    assert (result.status, result.reason) == expected
