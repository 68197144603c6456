"""A stand-in for the model hub: what `huggingface_hub` asks of it to commit files and to fetch
them."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ModelHub(ThreadingHTTPServer):
    """repositories: the files of each at its last commit. private: those that were made so. At
    "org/away" nobody answers."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def commit(self, repository: str) -> str:
        return sha1(repr(sorted(self.repositories[repository].items())).encode())

    def create(self, asked: dict[str, Any]) -> dict[str, str]:
        name = f"{asked['organization']}/{asked['name']}"
        self.repositories.setdefault(name, {".gitattributes": b"", "notes.txt": b"of people"})
        self.private |= (
            {name} if asked.get("private") or asked.get("visibility") == "private" else set()
        )
        return {"url": name}

    def change(self, repository: str, body: bytes) -> dict[str, str]:
        files = self.repositories[repository]
        for row in map(json.loads, body.splitlines()):
            if row["key"] == "file":
                files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            elif row["key"] == "deletedFile":
                del files[row["value"]["path"]]

        return {"commitUrl": repository, "commitOid": self.commit(repository)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelHub

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
        path_match = re.fullmatch(
            r"(?:/api/models)?/(org/[a-z]+)(?:/(revision|tree|resolve)/(\w+))?(?:/(.+))?", path
        )
        repository, kind, revision, name = path_match.groups() if path_match else ("", "", "", "")
        files = self.server.repositories.get(repository)
        if repository == "org/away":
            self.close_connection = True
        elif files is None:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        elif kind == "tree":
            rows = [
                {"path": name, "size": len(data), "oid": sha1(data)} for name, data in files.items()
            ]
            self.answer([row | {"type": "file"} for row in rows])
        elif kind == "resolve":
            self.answer(files[name], X_Repo_Commit=revision, ETag=f'"{sha1(files[name])}"')
        else:
            self.answer({"id": repository, "sha": self.server.commit(repository), "siblings": []})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.answer(self.server.create(json.loads(body)))
        elif self.path == "/api/validate-yaml":
            assert json.loads(body)["content"].startswith("---\n")
            self.answer({"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer(
                {"files": [{"path": row["path"]} | regular for row in json.loads(body)["files"]]}
            )
        else:
            assert "/commit/" in self.path, self.path
            self.answer(self.server.change("/".join(self.path.split("/")[3:5]), body))


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """A hub on this machine."""
    with ModelHub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
