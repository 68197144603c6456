"""A web site on this machine that is slow, cuts connections, lies and refuses."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hapvr.config import DownloadConfig
from hapvr.video.download import download_video
from hapvr.video.sources import ManifestEntry

PATIENT = DownloadConfig(retries=3, backoff_s=0)


@dataclass
class Site:
    """A web site of one video. address: its root. requests: (path, first byte asked for) of each GET."""

    address: str
    data: bytes
    requests: list[tuple[str, int]] = field(default_factory=list)
    failures: int = 0
    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=20))

    def get(self, path, folder, *, config=PATIENT):
        return download_video(ManifestEntry(f"s{path}", self.address + path), folder=folder, config=config)


class Handler(BaseHTTPRequestHandler):
    """What a path means: /STATUS/..., /flaky, /cut, /slow, /longer, /page, /moved, /together; else it is the video."""

    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *arguments):
        """Tests read the site's list of requests instead."""

    def do_GET(self):
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.site.requests.append((self.path, start))
        status = re.match(r"/(\d{3})\b", self.path)
        if status:
            self.answer(int(status[1]), b"")
        elif self.path.startswith("/flaky") and self.site.failures > 0:
            self.site.failures -= 1
            self.answer(503, b"")
        elif self.path.startswith("/together") and not self.meets_another():
            self.answer(500, b"")
        elif self.path.startswith("/moved"):
            self.answer(302, b"", Location="/video.mp4")
        elif self.path.startswith("/page"):
            self.answer(200, b"<html><body>nothing to see</body></html>", kind="text/html")
        else:
            self.send_video(start, ranged=asked is not None)

    def meets_another(self):
        """Whether a second request came while this one waits."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self.site.together.wait()
        return not self.site.together.broken

    def answer(self, status, body, *, kind="text/plain", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # clients that have had enough
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
        server.shutdown()
        server.server_close()
        thread.join()
