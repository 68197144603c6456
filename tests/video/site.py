"""A web site on this machine that is slow, cuts connections, lies and refuses."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hapvr.video.download import Downloader
from hapvr.video.settings import DownloadConfig
from hapvr.video.sources import ManifestEntry

SEGMENTS = 6
PATIENT = DownloadConfig(retries=3, workers=1)


@dataclass
class Site:
    """A web site of one video. address: its root. requests: (path, first byte asked for) of each
    GET."""

    address: str
    data: bytes
    requests: list[tuple[str, int]] = field(default_factory=list)
    failures: int = 0
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    downloaders: dict[str, Downloader] = field(default_factory=dict)

    def get(self, path, folder, *, config=PATIENT):
        """Download one path; equal configurations share their process."""
        key = config.model_dump_json()
        if key not in self.downloaders:
            self.downloaders[key] = self.stack.enter_context(Downloader(config, backoff_s=0))
        return self.downloaders[key].download(
            ManifestEntry(f"s{path}", self.address + path), folder=folder
        )

    def segment(self, number):
        """One of the SEGMENTS pieces of the video, which `/stream.m3u8` lists."""
        size = len(self.data) // SEGMENTS + 1
        return self.data[number * size : (number + 1) * size]


ENDLESS = {
    "/endless/video.mp4": (
        b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n",
        bytes(100_000),
        0,
    ),
    "/endless/headers.mp4": (b"HTTP/1.1 200 OK\r\n", b"X", 0.5),
}
"""Answers without an end: path -> (first bytes, bytes that are repeated, seconds between them)."""


class Handler(BaseHTTPRequestHandler):
    """What a path means: /STATUS/..., /flaky, /cut, /slow, /longer, /page, /moved; the hostile ones
    of ENDLESS; playlists (*.m3u8) and their segments; else it is the video."""

    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *arguments):
        """Tests read the site's list of requests instead."""

    def do_GET(self):
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.site.requests.append((self.path, start))
        status = re.match(r"/(\d{3})\b", self.path)
        segment = re.search(r"segment-(\d+)", self.path)
        if self.path.startswith("/endless"):
            self.send_for_ever()
        elif self.path.endswith(".m3u8"):
            self.answer(200, self.playlist().encode(), kind="application/vnd.apple.mpegurl")
        elif segment and not status:
            self.answer(200, self.site.segment(int(segment[1]) % SEGMENTS), kind="video/mp2t")
        elif status:
            self.answer(int(status[1]), b"")
        elif self.path.startswith("/flaky") and self.site.failures > 0:
            self.site.failures -= 1
            self.answer(503, b"")
        elif self.path.startswith("/moved"):
            self.answer(302, b"", Location="/video.mp4")
        elif self.path.startswith("/page"):
            self.answer(200, b"<html><body>nothing to see</body></html>", kind="text/html")
        else:
            self.send_video(start, ranged=asked is not None)

    def send_for_ever(self):
        """One of ENDLESS, until the client hangs up."""
        head, piece, pause_s = ENDLESS[self.path]
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(head)
            while True:
                self.wfile.write(piece)
                time.sleep(pause_s)

    def playlist(self):
        """/stream: a whole video; /live: it never ends; /locked: encrypted in an unknown way."""
        lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1"]
        if self.path.startswith("/locked"):
            lines.append('#EXT-X-KEY:METHOD=AES-999,URI="/key"')
        if self.path.startswith("/live"):
            lines.append(f"#EXT-X-MEDIA-SEQUENCE:{int(time.monotonic())}")
        else:
            lines.append("#EXT-X-PLAYLIST-TYPE:VOD")

        for number in range(SEGMENTS):
            lines += ["#EXTINF:1.0,", f"/segment-{number}.ts"]
        return (
            "\n".join(lines if self.path.startswith("/live") else [*lines, "#EXT-X-ENDLIST"]) + "\n"
        )

    def answer(self, status, body, *, kind="text/plain", **headers):
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)

        self.end_headers()
        self.wfile.write(body)

    def send_video(self, start, *, ranged):
        data = self.site.data
        length = len(data) - start + (5000 if self.path.startswith("/longer") else 0)
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Type", "video/mp4")
        self.send_header("Content-Length", str(length))
        if ranged:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        part = len(data) // 3 if self.path.startswith("/cut") else len(data)
        step = 500 if self.path.startswith("/slow") else 65536
        self.close_connection = True
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # clients that have had enough
            for position in range(start, min(len(data), start + part), step):
                self.wfile.write(data[position : min(position + step, start + part)])
                time.sleep(0.1 if step == 500 else 0)


class QuietServer(ThreadingHTTPServer):
    """Says nothing about clients that hang up."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        """Connections cut by the client are part of the tests."""


@contextlib.contextmanager
def serve(data: bytes) -> Iterator[Site]:
    """A site whose video has these bytes, up while the block runs."""
    handler = type("SiteHandler", (Handler,), {})
    server = QuietServer(("127.0.0.1", 0), handler)
    handler.site = Site(f"http://127.0.0.1:{server.server_address[1]}", data)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield handler.site
    finally:
        handler.site.stack.close()
        server.shutdown()
        server.server_close()
        thread.join()
