"""A stand-in for the model hub: what `huggingface_hub` asks of it to commit files and to fetch them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = dict[str, bytes]


class ModelHub:
    """repositories: the files of each at its last commit. private: those that were made so. At "org/away" nobody answers."""

    def __init__(self) -> None:
        self.repositories: dict[str, Files] = {}
        self.private: set[str] = set()

    def commit(self, repository: str) -> str:
        """Forty hexadecimal digits of the content."""
        rows = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repositories[repository].items())
        return hashlib.sha1(repr(rows).encode()).hexdigest()

    def create(self, body: bytes) -> dict[str, Any]:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        self.repositories.setdefault(name, {".gitattributes": b"", "notes.txt": b"of people"})
        self.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
        return {"url": name}

    def change(self, repository: str, body: bytes) -> dict[str, Any]:
        files = self.repositories[repository]
        for row in map(json.loads, body.splitlines()):
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "deletedFile":
                del files[value["path"]]
        return {"commitUrl": repository, "commitOid": self.commit(repository)}

    def listing(self, repository: str) -> list[dict[str, Any]]:
        """The tree; an oid is only a name here."""
        return [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in self.repositories[repository].items()
        ]


def _handler(hub: ModelHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self, content: Any, status: int = 200, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            found = re.fullmatch(r"(?:/api/models)?/(org/[a-z]+)(?:/(revision|tree|resolve)/(\w+))?(?:/(.+))?", path)
            if found is None or found[1] not in hub.repositories:
                if path.startswith("/api/models/org/away"):
                    self.close_connection = True
                    return
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            elif found[2] == "tree":
                self.answer(hub.listing(found[1]))
            elif found[2] == "resolve":
                data = hub.repositories[found[1]][found[4]]
                self.answer(data, X_Repo_Commit=found[3], ETag=f'"{hashlib.sha1(data).hexdigest()}"')
            else:
                self.answer({"id": found[1], "sha": hub.commit(found[1]), "siblings": []})

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            repository = "/".join(self.path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
            if self.path == "/api/repos/create":
                self.answer(hub.create(body))
            elif self.path == "/api/validate-yaml":
                assert json.loads(body)["content"].startswith("---\n")
                self.answer({"warnings": [], "errors": []})
            elif "/preupload/" in self.path:
                regular = {"uploadMode": "regular", "shouldIgnore": False}
                self.answer({"files": [{"path": row["path"]} | regular for row in json.loads(body)["files"]]})
            else:
                assert "/commit/" in self.path, self.path
                self.answer(hub.change(repository, body))

    return Handler


@contextmanager
def model_hub() -> Iterator[tuple[str, ModelHub]]:
    """The address of a hub on this machine, and what it holds."""
    hub = ModelHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", hub
    finally:
        server.shutdown()
        server.server_close()
