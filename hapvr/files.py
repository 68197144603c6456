"""Files that are written whole, so that a reader finds the old content or the new one; JSON files
that may be damaged; digests."""

import codecs
import errno
import hashlib
import io
import itertools
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hapvr.errors import DamagedError, DataError
from hapvr.settings import explain

Value = TypeVar("Value")

PART_SUFFIX = ".hapvr-part"
READ_BYTES = 1 << 20
"""Read at once where a file is digested."""
MAX_UNWRITTEN = 64 << 30
"""Bytes of a file that were never written and are read, at a gigabyte a second: a file of a few
bytes may say that it has terabytes."""
FULL_DISK = (
    *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)),
    "disk is full",
)


@contextmanager
def write_atomic(path: Path, *, invalidates: Path | None = None) -> Iterator[Path]:
    """Yield the path of a part; what the block writes there becomes `path` when the block ends
    well.

    The content is flushed to the disk before the rename, and the folder after it. A block that
    fails leaves the old content in place and removes the part. The folder is made if it is missing.

    invalidates: a file that describes the old content; it is removed right before the new content
    appears."""
    require_regular(path)  # a superuser could replace a device
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + PART_SUFFIX)
    part.unlink(missing_ok=True)  # of a process that was killed; it may be a link to another file
    try:
        yield part
        _flush(part)
        if invalidates is not None:
            invalidates.unlink(missing_ok=True)
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            error.filename = str(path)
        raise

    _flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """As `write_atomic`, of a text in UTF-8."""
    with write_atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def set_aside(path: Path) -> Path:
    """Rename a file that may be the only copy of something to `<name>.damaged`, or `-2`, `-3` ...;
    returns the new path."""
    names = (
        f"{path.name}.damaged{'' if number == 1 else f'-{number}'}" for number in itertools.count(1)
    )
    place = next(place for place in map(path.with_name, names) if not os.path.lexists(place))
    return path.rename(place)


def cache_folder(kind: str) -> Path:
    """A folder of the user's cache, made if necessary, that nobody else may write to.

    Raises OSError where there is none: a home that may only be read, or that others write to.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "hapvr" / kind
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"others may write to {folder}; `chmod 700` it")
    return folder


def require_regular(path: Path, *, max_bytes: int | None = None) -> None:
    """Raise OSError for what is there and no regular file (a folder, a device or a pipe, whose
    reading may never end), or larger. And for a name that no file can have: a library that ends it
    at the NUL would read another file."""
    problem = "no file can have this name"
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            problem = "this is not a regular file" if path.exists() and not path.is_file() else ""
            if not problem and max_bytes is not None and (size := path.stat().st_size) > max_bytes:
                problem = f"it has {size} bytes; at most {max_bytes} are read"

    if problem:
        raise OSError(errno.EINVAL, problem, str(path))


def open_regular(path: Path, *, max_bytes: int | None = None) -> io.BufferedReader:
    """A file to be read, which another file cannot take the place of meanwhile.

    Raises OSError as `require_regular` does, without waiting for a writer of a pipe.
    """
    require_regular(path, max_bytes=max_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "this is not a regular file", str(path))

    return os.fdopen(descriptor, "rb")


def is_unwritten(file: io.BufferedReader) -> bool:
    """Whether an open file has holes of more than MAX_UNWRITTEN bytes together."""
    if os.fstat(file.fileno()).st_size <= MAX_UNWRITTEN:
        return False
    try:
        return _has_holes(file.fileno())
    except OSError:  # its file system knows of no holes
        return False
    finally:
        file.seek(0)


def _has_holes(descriptor: int) -> bool:
    """`is_unwritten` where the file system knows. Raises OSError where it does not."""
    size = os.fstat(descriptor).st_size
    num_unwritten = 0
    place = 0
    while place < size and num_unwritten <= MAX_UNWRITTEN:
        hole = os.lseek(descriptor, place, os.SEEK_HOLE)
        place = _next_data(descriptor, hole, size)
        num_unwritten += place - hole

    return num_unwritten > MAX_UNWRITTEN


def _next_data(descriptor: int, place: int, size: int) -> int:
    """Where something is written from this place of a file on; its size where nothing is."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def file_problem(error: Exception) -> str:
    """Why a file cannot be read, without its name, which the message that quotes this has."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "this account may not read it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def read_bytes(path: Path, *, max_bytes: int | None = None) -> bytes:
    """All of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path, max_bytes=max_bytes) as file:
        return file.read()


def read_text(path: Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """All of a regular text file. Raises OSError as `open_regular` does, and UnicodeDecodeError."""
    return read_bytes(path).decode(encoding, errors)


@contextmanager
def naming_full_disk(folder: Path | str, *, hint: str) -> Iterator[None]:
    """Turn errors of a block that could not write below `folder` into a DataError. hint: what to do
    after making space. Also those of libraries that pass on what the system said. Other errors
    pass."""
    try:
        yield
    except Exception as error:
        if not any(said in str(error) for said in FULL_DISK):
            raise
        next_step = f"Free space or correct the permissions; {hint}"
        raise DataError(f"cannot write below {folder}: {error}. {next_step}") from error


def without_mark(data: bytes) -> bytes:
    """UTF-8 without the byte order mark that some editors write first."""
    return data.removeprefix(codecs.BOM_UTF8)


_adapters: dict[Any, TypeAdapter[Any]] = {}


def adapter_of(kind: type[Value]) -> TypeAdapter[Value]:
    """What checks values against a type that pydantic knows. Making one takes milliseconds."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def read_json_as(path: Path, kind: type[Value], *, hint: str) -> Value:
    """The value in a JSON file, checked against a type that pydantic knows. hint: what makes the
    file again, for the error. Raises DamagedError, naming the file and the wrong value, where it is
    missing or holds something else."""
    try:
        return adapter_of(kind).validate_json(without_mark(read_bytes(path)), strict=True)
    except (OSError, ValidationError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else error
        state = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({reason})"
        raise DamagedError(f"{path} is {state}; {hint}") from error


def read_json_lines(path: Path, kind: TypeAdapter[Value]) -> list[Value]:
    """The values of a file with a JSON value of this kind per line; empty if there is no file. A
    line that cannot be used, as a power cut leaves one, is skipped with a warning."""
    values = []
    require_regular(path)  # also a name that no file can have
    lines = without_mark(read_bytes(path)).splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(kind.validate_json(line, strict=True))
        except ValidationError as error:
            warnings.warn(f"{path}: line {number} is damaged ({explain(error)}); it is skipped")

    return values


def _flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
        ):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def file_sha256(path: Path, progress: Callable[[int], None] = lambda num_bytes: None) -> str:
    """Hex SHA-256 of a local file. progress: is told how many bytes were read, again and again.
    Raises OSError where it cannot be read, for a device or pipe, which may never end, and for a
    file that `is_unwritten`."""
    digest = hashlib.sha256()
    buffer = bytearray(READ_BYTES)
    num_bytes = 0
    with open_regular(path) as file:
        if is_unwritten(file):
            raise OSError(errno.EFBIG, "nearly all of this file was never written", str(path))
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            num_bytes += count
            progress(num_bytes)

    return digest.hexdigest()


def digest_of(value: object) -> str:
    """Hex SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def arrays_sha256(arrays: Mapping[str, Any]) -> str:
    """Hex SHA-256 over arrays of numpy in name order: name, type as torch prints it, shape, and
    bytes of each."""
    digest = hashlib.sha256()
    for name, values in sorted(arrays.items(), key=lambda item: item[0]):
        digest.update(f"{name}:torch.{values.dtype}:{values.shape};".encode())
        digest.update(values.tobytes())

    return digest.hexdigest()
