"""One data root, local folder or object store URL, behind pyarrow's filesystems."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.fs as pafs

from hapvr.errors import DataError

PART_SUFFIX = ".part"


class DataRoot:
    """Paths below one root. `url`: a local folder, or e.g. `s3://bucket/prefix`.

    Every name given to the methods is relative to the root, with forward slashes; one that leaves the root is refused.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        if "://" in self.url:
            self.filesystem, self._base = pafs.FileSystem.from_uri(self.url)
            self.local: Path | None = None
        else:
            self.local = Path(self.url).resolve()
            self.filesystem, self._base = pafs.LocalFileSystem(), self.local.as_posix()

    def path(self, name: str) -> str:
        """The filesystem's path of `name`. Raises DataError for a name that leaves the root."""
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "" in parts:
            raise DataError(f"storage: {name!r} is not a relative path below the data root {self.url}")
        return posixpath.join(self._base, name)

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self.path(name)).type == pafs.FileType.File)

    def list_folders(self, name: str) -> list[str]:
        """Names of the folders directly below `name`, sorted; empty where it does not exist."""
        selector = pafs.FileSelector(self.path(name), allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def open(self, name: str) -> Any:
        """A random access file to read. Raises DataError where it does not exist."""
        try:
            return self.filesystem.open_input_file(self.path(name))
        except FileNotFoundError:
            raise DataError(f"storage: {name} is not below {self.url}; run the stage that makes it first") from None

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears under its name only when the block ends well; a failed block leaves what was there before."""
        target = self.path(name)
        if self.local is not None:
            self.filesystem.create_dir(posixpath.dirname(target), recursive=True)
        # An object appears when its upload is complete, so only local files need the detour.
        part = target + PART_SUFFIX if self.local is not None else target
        try:
            with self.filesystem.open_output_stream(part) as stream:
                yield stream
        except BaseException as error:
            if part != target:
                self.filesystem.delete_file(part)
            if isinstance(error, OSError):
                raise DataError(f"storage: cannot write {name} below {self.url}: {error}") from error
            raise
        if part != target:
            self.filesystem.move(part, target)

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""
        if self.exists(name):
            self.filesystem.delete_file(self.path(name))

    def sha256(self, name: str) -> str:
        """Hex SHA-256 of a file's bytes."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def write_json(self, name: str, value: Any) -> None:
        with self.write(name) as stream:
            stream.write(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str).encode())

    def read_json(self, name: str) -> Any:
        with self.open(name) as file:
            return json.loads(file.read())

    def local_path(self, name: str) -> Path:
        """The local path of a file or folder, for libraries that need one. Raises DataError on an object store."""
        if self.local is None:
            raise DataError(f"storage: {name} must be on a local disk, and the data root is {self.url}")
        return Path(self.path(name))


def read_schema_metadata(schema: pa.Schema, key: bytes) -> str:
    """A text of the schema's metadata, empty where it is absent."""
    return ((schema.metadata or {}).get(key) or b"").decode()
