"""The search service over a small real collection, as a real server on the loopback address."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from hapvr.scratch import LOCK
from hapvr.serving.server import Server
from hapvr.serving.service import Service
from hapvr.steps.duplicate_pairs import make_duplicate_pairs
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from tests.scorer.bundles import BLACK, write_scenes
from tests.steps.search_projects import searchable_project

SHORT = "in/short.mp4"
COPY = "in/trips/copy of short.mp4"
PART = "in/trips/part.mp4"
GONE = "in/gone.mp4"
"""A video that was deleted after it was indexed."""

REPLACED = "in/replaced.mp4"
"""One whose file is another video by now."""


def fill_collection(folder: Path) -> None:
    """A collection with an index and its duplicates, one video whose file is gone, and one whose
    file was replaced."""
    gone = write_scenes(folder / "videos" / "gone.mp4", [BLACK, *range(700, 705)])
    replaced = write_scenes(folder / "videos" / "replaced.mp4", list(range(710, 715)))
    project = searchable_project(folder, onnx=True)
    searcher = Searcher.open(project)
    for key in searcher.collection.shards():
        make_duplicate_pairs(project, searcher, key)
    gone.unlink()
    write_scenes(replaced, list(range(720, 726)))


@dataclass(frozen=True)
class Answer:
    """Status, headers with names in lower case, and body of one answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """A program that asks the service."""

    port: int
    service: Service
    token: str = ""

    @property
    def uploads(self) -> list[str]:
        """Names of the files that were sent and are still there."""
        return [path.name for path in self.service.uploads.iterdir() if path.name != LOCK]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        sender: str = "127.0.0.1",
        **values: Any,
    ) -> Answer:
        """body: bytes or a file as they are, other values as JSON. sender: the client's address.
        values: of the address, after the question mark."""
        given = dict(headers or {}) | (
            {"authorization": f"Bearer {self.token}"} if self.token else {}
        )
        if body is not None and not isinstance(body, bytes) and not hasattr(body, "read"):
            body = json.dumps(body).encode()
            given.setdefault("content-type", "application/json")

        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=300, source_address=(sender, 0)
        )
        try:
            address = quote(path) + (f"?{urlencode(values)}" if values else "")
            connection.request(method, address, body=body, headers=given)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **values: Any) -> Answer:
        return self.ask("GET", path, headers=headers, **values)

    def search(self, **asked: Any) -> Answer:
        """POST /search as JSON, waited for."""
        return self.ended(
            self.ask(
                "POST", "/search", body={name.rstrip("_"): value for name, value in asked.items()}
            )
        )

    def upload(self, file: Path, **values: Any) -> Answer:
        """POST /search with a file as the body, waited for."""
        with file.open("rb") as stream:
            kind = {"content-type": "application/octet-stream"}
            values = {"name": file.name} | values
            return self.ended(self.ask("POST", "/search", body=stream, headers=kind, **values))

    def ended(self, answer: Answer) -> Answer:
        """The answer of a search at its end."""
        while answer.status == 202 or (
            answer.status == 200 and answer.json["status"] in ("waiting", "running")
        ):
            answer = self.get(f"/jobs/{answer.json['job']}", wait_s=20)
        return answer


def references(job: Any) -> list[str]:
    """The videos that a search has found, the best first."""
    return [match["reference"] for match in job["answer"]["matches"]]


@contextmanager
def serving(project: Project, **options: Any) -> Iterator[Client]:
    """The service over a project, in a thread; it looks for a changed index at every request.
    options: of `Server`."""
    server = Server(project, host="127.0.0.1", port=0, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hapvr.serving.collection.REFRESH_S", 0.0)
        thread.start()
        try:
            client = Client(server.port, server.app.state.service)
            assert client.get("/health").status == 200
            yield client
        finally:
            server.stop()
            thread.join(60)
            assert not thread.is_alive()
