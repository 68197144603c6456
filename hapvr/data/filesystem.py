"""One data root, local folder or object store URL, behind pyarrow's filesystems."""

import hashlib
import json
import os
import posixpath
import re
import resource
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from hapvr.errors import ConfigError, DamagedError, DataError
from hapvr.files import PART_SUFFIX, adapter_of, require_regular, without_mark, write_atomic
from hapvr.settings import first_line

Value = TypeVar("Value")

LOCKS_FOLDER = ".locks"
MADE_FOLDER = ".made"
"""Has a note, an empty file, for each file that was made below the root and not removed by us. By
it a file that is lost is told from one that never was."""
NOTE_SUFFIX = ".note"
REMOVE_HINT = "Correct its permissions and run again"

DATA_ERRORS = (
    pa.ArrowException,
    SafetensorError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    RecursionError,
)
"""The errors that libraries raise for damaged Parquet, safetensors and JSON."""


class DataRoot:
    """Paths below one root. `url`: a local folder, or e.g. `s3://bucket/prefix`. Every name that
    methods take is relative to the root, with forward slashes; a name that leaves the root is
    refused."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self.local: Path | None = None
        if re.search("(?<!hdfs)://[^/]*:.*@", self.url):
            raise ConfigError(
                "data root: its keys would be shown; give them as variables, e.g. "
                "AWS_SECRET_ACCESS_KEY"
            )

        try:
            if "://" in self.url:
                self.filesystem, self._base = pafs.FileSystem.from_uri(self.url)
            else:
                self.local = Path(self.url).resolve()
                self.filesystem = pafs.LocalFileSystem()
                self._base = self.local.as_posix()
        except (pa.ArrowException, OSError, RuntimeError, ValueError) as error:
            problem = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"data root: {self.url!r:.200} cannot be used ({problem}); expected a folder, "
                "or e.g. s3://bucket/prefix"
            ) from error

    def path(self, name: str) -> str:
        """The filesystem's path of `name`. Raises DataError for a name that leaves the root."""
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "" in parts or "\0" in name:
            raise DataError(
                f"storage: {name!r} is not a relative path below the data root {self.url}"
            )

        return posixpath.join(self._base, name)

    def url_of(self, name: str) -> str:
        """The local path or URL of `name`, at which another root can be opened. Raises DataError as
        `path` does."""
        place = self.path(name)
        if self.local is not None:
            return place
        base, mark, options = self.url.partition("?")
        return f"{base.rstrip('/')}/{name}{mark}{options}"

    def exists(self, name: str) -> bool:
        """Whether something has this name; a folder in the place of a file is refused only when it
        is opened."""
        return bool(self._info(self.path(name)).type != pafs.FileType.NotFound)

    def list_folders(self, name: str) -> list[str]:
        """Names of the folders directly below `name`, sorted; empty where it does not exist."""
        return self._list(name, pafs.FileType.Directory)

    def list_files(self, name: str) -> list[str]:
        """Names of the files directly below `name`, sorted and without unfinished ones; empty where
        it does not exist."""
        files = self._list(name, pafs.FileType.File)
        return [file for file in files if not file.endswith(PART_SUFFIX)]

    def _list(self, name: str, kind: Any) -> list[str]:
        selector = pafs.FileSelector(self.path(name), allow_not_found=True)
        return sorted(info.base_name for info in self._info(selector) if info.type == kind)

    def _info(self, place: Any) -> Any:
        with self._naming("the data root cannot be read", hint="See data_root"):
            return self.filesystem.get_file_info(place)

    @contextmanager
    def _naming(self, problem: str, *, hint: str) -> Iterator[None]:
        """Turn errors of the file system into a DataError."""
        try:
            yield
        except OSError as error:
            cause = " ".join(str(error).split())[:300]
            raise DataError(f"storage: {problem} ({self.url}): {cause}. {hint}") from error

    def open(self, name: str) -> Any:
        """A random access file to read. Raises DataError where it does not exist."""
        hint = "Run the step that makes it first, or correct its permissions or the connection"
        with self._naming(f"{name} cannot be read", hint=hint):
            if self.local is not None:
                require_regular(Path(self.path(name)))  # a pipe would wait for its writer
            return self.filesystem.open_input_file(self.path(name))

    @contextmanager
    def write(self, name: str, *, invalidates: str | None = None) -> Iterator[IO[bytes]]:
        """A file that appears under its name only when the block ends well; a failed block leaves
        what was there before. invalidates: a file that describes the old content; it is removed
        right before the new content appears. Raises DataError where the root cannot be written or
        is full."""
        hint = (
            "Free space or correct the permissions and run again; what was finished before is kept"
        )
        write = self._upload if self.local is None else self._write_file
        with self._naming(f"cannot write {name}", hint=hint), write(name, invalidates) as stream:
            yield stream

        self.note_made(name)

    @contextmanager
    def _write_file(self, name: str, invalidates: str | None) -> Iterator[IO[bytes]]:
        described = None if invalidates is None else Path(self.path(invalidates))
        with (
            write_atomic(Path(self.path(name)), invalidates=described) as part,
            pa.OSFile(str(part), "wb") as stream,
        ):
            yield stream

    @contextmanager
    def _upload(self, name: str, invalidates: str | None) -> Iterator[IO[bytes]]:
        """Upload a file. An upload cannot be abandoned once it has begun, since closing its stream
        publishes a part of the content. So it begins only when all content is there."""
        target = self.path(name)
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            if invalidates is not None:
                self.delete(invalidates)
            with self.filesystem.open_output_stream(target) as stream:
                shutil.copyfileobj(file, stream, 1 << 20)

    def note_made(self, name: str) -> None:
        """Remember that a file, if it is there, was made, so that it is damage if it is missing.
        `write` does so itself. A note that cannot be written costs no more than this."""
        note = _note_of(name)
        with suppress(OSError, DataError):
            if name.startswith(".") or self.exists(note) or not self.exists(name):
                return
            if self.local is not None:
                Path(self.path(note)).parent.mkdir(parents=True, exist_ok=True)
            with self.filesystem.open_output_stream(self.path(note)):
                pass

    def lost_files(self) -> list[str]:
        """Names of the files that were made and are missing, sorted. A folder or a pipe in its
        place is no file."""
        base = self.path(MADE_FOLDER)
        selector = pafs.FileSelector(base, allow_not_found=True, recursive=True)
        notes = [info.path for info in self._info(selector) if info.path.endswith(NOTE_SUFFIX)]
        names = sorted(note.removeprefix(f"{base}/").removesuffix(NOTE_SUFFIX) for note in notes)
        files = self._info([self.path(name) for name in names])
        return [
            name for name, file in zip(names, files, strict=True) if file.type != pafs.FileType.File
        ]

    def has_record(self, name: str) -> bool:
        """Whether there is a record that nothing can rebuild. Raises DamagedError for one that was
        made and is missing: what it says would be taken for never said."""
        if self.exists(name):
            return True
        # It may have been written since: a file comes before its note.
        if self.exists(_note_of(name)) and not self.exists(name):
            raise DamagedError(self.lost_text(name, remedy="restore it from a copy"))
        return False

    def lost_text(self, name: str, *, remedy: str) -> str:
        """In words, that a file is lost. remedy: what brings it back."""
        return (
            f"storage: {name} below {self.url} was made and is missing; {remedy}, or remove "
            f"{_note_of(name)} if it was removed on purpose"
        )

    def is_writable(self) -> bool:
        """Whether files may be made here; an object store cannot tell beforehand, so True there."""
        return self.local is None or os.access(self.local, os.W_OK | os.X_OK)

    def care_lock(self) -> AbstractContextManager[None]:
        """Held by everything that repairs or forgets below this root, before any other lock."""
        busy = f"another process repairs or forgets below {self.url}; waiting for it to end"
        return self.lock("care", busy=busy)

    @contextmanager
    def lock(self, name: str, *, busy: str = "") -> Iterator[None]:
        """Keep others on this machine from making `name` while the block runs.

        Whoever comes second waits, with the warning `busy`; a thread that holds the lock already
        goes on. A process that dies releases its locks. In an object store other machines do not
        wait: two writers of equal content end in the same bytes, because an object appears whole,
        and the index of a shard is written after its data.
        """
        path = self._lock_file(name)
        hint = "Correct its permissions or set data_root"
        with self._naming("the data root cannot be written", hint=hint):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path, is_singleton=True)
            try:
                held = lock.acquire(blocking=False)
            except Timeout:
                waiting = f"{name} is being made by another process; waiting for it to end"
                warnings.warn(busy or waiting)
                held = lock.acquire()

        with held:
            yield

    def _lock_file(self, name: str) -> Path:
        if self.local is not None:
            return self.local / LOCKS_FOLDER / f"{name.replace('/', '-')}.lock"
        digest = hashlib.sha256(f"{os.getuid()} {self.url}/{name}".encode()).hexdigest()
        return Path(tempfile.gettempdir()) / f"hapvr-{digest[:32]}.lock"

    def delete(self, name: str) -> None:
        """Remove a file if it exists. Raises DataError where it cannot be removed."""
        with self._naming(f"cannot remove {name}", hint=REMOVE_HINT), suppress(FileNotFoundError):
            self._forget_notes(name)
            if self.exists(name):  # another process may remove it meanwhile
                self.filesystem.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """Remove a folder with everything in it, if it exists. Raises DataError where it cannot be
        removed."""
        with self._naming(f"cannot remove {name}", hint=REMOVE_HINT), suppress(FileNotFoundError):
            self._forget_notes(name)
            if self._info(self.path(name)).type == pafs.FileType.Directory:
                self.filesystem.delete_dir(self.path(name))

    def _forget_notes(self, name: str) -> None:
        """Forget that a file, or everything in a folder, was made: it is about to be removed."""
        note = self.path(_note_of(name))
        folder = self.path(f"{MADE_FOLDER}/{name}")
        if self._info(note).type == pafs.FileType.File:
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(note)
        elif self._info(folder).type == pafs.FileType.Directory:
            with suppress(FileNotFoundError):
                self.filesystem.delete_dir(folder)

    def sha256(self, name: str) -> str:
        """Hex SHA-256 of a file's bytes."""
        with self.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def num_bytes(self, name: str) -> int:
        """Size of a file; 0 where it does not exist."""
        return int(self._info(self.path(name)).size or 0)

    def modified_ns(self, *names: str) -> list[int]:
        """When each file was last written, in nanoseconds since 1970; 0 for a file that does not
        exist."""
        return [info.mtime_ns or 0 for info in self._info([self.path(name) for name in names])]

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)
        with self.write(name) as stream:
            stream.write(text.encode())

    def read_json(
        self, name: str, *, hint: str = "run the step that rebuilds it"
    ) -> dict[str, Any]:
        """The object in a JSON file, see `read_json_as`."""
        return self.read_json_as(name, dict[str, Any], hint=hint)

    def read_json_as(self, name: str, kind: type[Value], *, hint: str) -> Value:
        """The value in a JSON file, checked against a type that pydantic knows. hint: what rebuilds
        the file. Raises DataError where it does not exist, DamagedError where it holds
        something else."""
        with self.open(name) as file, self.corruption_errors(name, hint=hint):
            return adapter_of(kind).validate_json(without_mark(file.read()))

    @contextmanager
    def corruption_errors(self, name: str, *, hint: str) -> Iterator[None]:
        """Turn errors of a block that reads `name` into a DamagedError with its name. hint: what
        rebuilds it."""
        try:
            yield
        except DATA_ERRORS as error:
            raise DamagedError(
                f"storage: {name} below {self.url} is damaged ({first_line(error)}); {hint}"
            ) from error

    def local_path(self, name: str) -> Path:
        """The local path of a file or folder, for libraries that need one. Raises DataError on an
        object store."""
        if self.local is None:
            raise DataError(
                f"storage: {name} must be on a local disk, and the data root is {self.url}"
            )
        return Path(self.path(name))


def _note_of(name: str) -> str:
    """The note that a file was made."""
    return f"{MADE_FOLDER}/{name}{NOTE_SUFFIX}"


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, usually 1,024, by `count`, as far as the system
    allows."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return
    wanted = allowed + count
    if most >= 0:
        wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def read_schema_metadata(schema: pa.Schema, key: bytes) -> str:
    """A text in the schema's metadata; empty where it is missing."""
    return ((schema.metadata or {}).get(key) or b"").decode()
