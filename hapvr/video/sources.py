"""Which videos a source holds: folders of files, and lists of ids or URLs."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import polars as pl

from hapvr.errors import DataError

VIDEO_SUFFIXES = frozenset(
    [
        ".3g2",
        ".3gp",
        ".asf",
        ".avi",
        ".divx",
        ".f4v",
        ".flv",
        ".gif",
        ".h264",
        ".hevc",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mjpeg",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpe",
        ".mpeg",
        ".mpg",
        ".mts",
        ".mxf",
        ".ogm",
        ".ogv",
        ".qt",
        ".rm",
        ".rmvb",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
        ".y4m",
    ]
)
MAX_ID_LENGTH = 1024
_YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_ESCAPED_BYTE = re.compile(rb"\\x([89a-f][0-9a-f])")
_URL = re.compile(r"https?://[^\s]+", re.IGNORECASE)


@dataclass(frozen=True)
class ManifestEntry:
    """One video. video_id: "<source>/<name>", NFC. uri: a local path (`path_of_text`), an http(s) URL, or youtube:<id>."""

    video_id: str
    uri: str


@dataclass(frozen=True)
class ScanResult:
    """entries: sorted by video id. ignored: relative paths of files whose suffix is no video's, sorted."""

    entries: tuple[ManifestEntry, ...]
    ignored: tuple[str, ...]


def scan_folder(root: Path, *, source: str) -> ScanResult:
    """All videos below a folder, by suffix; whatever is inside a file with a video's suffix is judged later, as a row.

    Hidden files and folders are left out; links are followed only to targets inside the root and never into a loop.
    Raises DataError if the folder is missing, unreadable or holds no video.
    """
    if not root.is_dir():
        raise DataError(f"source {source}: {root} is no folder; set the source's path to a folder of videos")
    found = _files(root, root.resolve())
    videos = [path for path in found if path.suffix.lower() in VIDEO_SUFFIXES]
    ignored = sorted(
        text_of_path(path.relative_to(root)) for path in found if path.suffix.lower() not in VIDEO_SUFFIXES
    )
    if not videos:
        others = f"only {len(ignored)} other files" if ignored else "it is empty"
        raise DataError(f"source {source}: no videos in {root}, {others}; wanted files such as .mp4, .mkv or .webm")
    return ScanResult(entries=entries_of_files(videos, root=root, source=source), ignored=tuple(ignored))


def entries_of_files(files: Iterable[Path], *, root: Path, source: str) -> tuple[ManifestEntry, ...]:
    """Entries of files below root, sorted by video id; control characters and bytes that are no UTF-8 are escaped.

    Raises DataError for an invalid or repeated id.
    """
    entries: dict[str, ManifestEntry] = {}
    for path in files:
        name = _without_controls(unicodedata.normalize("NFC", text_of_path(path.relative_to(root))))
        video_id = validate_video_id(f"{source}/{name}")
        if video_id in entries:
            raise DataError(f"source {source}: two files are {video_id!r} after Unicode normalisation; rename one")
        entries[video_id] = ManifestEntry(video_id=video_id, uri=text_of_path(path))
    return tuple(entries[key] for key in sorted(entries))


def read_list(path: Path, *, source: str) -> tuple[ManifestEntry, ...]:
    """Videos of a CSV or Parquet file with a column `url`, `video_id` or both, in its order; repeated rows count once.

    A row without a URL needs an 11-character YouTube id; one without an id is named by its percent-quoted URL. Raises
    DataError naming the first wrong row.
    """
    table = _read_table(path, source)
    wanted = [column for column in ("video_id", "url") if column in table.columns]
    if not wanted:
        raise DataError(f"source {source}: {path.name} has columns {table.columns}; wanted `url`, `video_id` or both")
    entries: dict[str, ManifestEntry] = {}
    for number, row in enumerate(table.select(wanted).iter_rows(named=True), start=1):
        entry = _list_entry(row.get("video_id"), row.get("url"), source=source, where=f"{path.name} row {number}")
        known = entries.setdefault(entry.video_id, entry)
        if known != entry:
            raise DataError(
                f"source {source}: {path.name} row {number}: id {entry.video_id!r} already stands for {known.uri}"
            )
    if not entries:
        raise DataError(f"source {source}: {path.name} has no rows; wanted at least one video")
    return tuple(entries.values())


def entries_of_youtube_ids(video_ids: Iterable[str], *, source: str) -> tuple[ManifestEntry, ...]:
    """Entries of YouTube ids, in their order. Raises DataError naming one that is none."""
    return tuple(_list_entry(video_id, None, source=source, where="its ids") for video_id in video_ids)


def is_remote(uri: str) -> bool:
    """Whether an entry's uri must be downloaded; otherwise it is a local path."""
    return uri.lower().startswith(("http://", "https://", "youtube:"))


def text_of_path(path: Path) -> str:
    """The path as text that any format can store; bytes that are no UTF-8 become \\xNN."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="backslashreplace")


def path_of_text(text: str) -> Path:
    """The path that `text_of_path` made this text of: that of an escaped name, if only a file of that name is there."""
    path = Path(text)
    if _ESCAPED_BYTE.search(os.fsencode(text)) and not path.exists():
        escaped = Path(os.fsdecode(_ESCAPED_BYTE.sub(lambda byte: bytes([int(byte[1], 16)]), os.fsencode(text))))
        return escaped if escaped.exists() else path
    return path


def validate_video_id(video_id: str) -> str:
    """The id itself if it can safely name a video; raises DataError saying what is wrong with it otherwise.

    Wanted: "<source>/<name>", NFC, no control characters, no part between slashes that is empty, "." or "..".
    """
    source, slash, name = video_id.partition("/")
    problem = ""
    if not slash or not source or not name:
        problem = "it is not of the form <source>/<name>"
    elif len(video_id) > MAX_ID_LENGTH:
        problem = f"it has {len(video_id)} characters, at most {MAX_ID_LENGTH}"
    elif video_id != unicodedata.normalize("NFC", video_id):
        problem = "it is not in Unicode normal form C"
    elif any(unicodedata.category(character) in ("Cc", "Cs") for character in video_id):
        problem = "it holds control characters"
    elif any(part in ("", ".", "..") for part in video_id.split("/")):
        problem = "a part between slashes is empty, '.' or '..'"
    if problem:
        raise DataError(f"video id {video_id!r}: {problem}; rename the video")
    return video_id


def _files(folder: Path, top: Path, seen: frozenset[Path] = frozenset()) -> list[Path]:
    """Files below a folder in name order; `seen` are the real folders on the way here."""
    real = folder.resolve()
    if real in seen or not real.is_relative_to(top):
        return []
    found: list[Path] = []
    try:
        with os.scandir(folder) as scanned:
            names = sorted(entry.name for entry in scanned if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}; check its permissions") from error
    for name in names:
        path = folder / name
        # unlike Path.resolve, realpath takes links that point at each other in a circle
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(top):
            continue
        if path.is_dir():
            found.extend(_files(path, top, seen | {real}))
        elif path.is_symlink() or path.exists():
            found.append(path)
    return found


def _without_controls(name: str) -> str:
    """One odd name must not keep a whole folder out."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) == "Cc" else character
        for character in name
    )


def _read_table(path: Path, source: str) -> pl.DataFrame:
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path)
        return pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"source {source}: {path} is no readable CSV or Parquet file: {first_line}") from error


def _list_entry(video_id: str | None, url: str | None, *, source: str, where: str) -> ManifestEntry:
    name = unicodedata.normalize("NFC", str(video_id).strip()) if video_id is not None else ""
    link = str(url).strip() if url is not None else ""
    if link and not _URL.fullmatch(link):
        raise DataError(f"source {source}: {where}: {link!r} is no http(s) URL")
    if not link and not _YOUTUBE_ID.fullmatch(name):
        raise DataError(f"source {source}: {where}: wanted a URL or an 11-character YouTube id, got {name!r}")
    uri = link or f"youtube:{name}"
    try:
        return ManifestEntry(video_id=validate_video_id(f"{source}/{name or quote(link, safe=':?=&+')}"), uri=uri)
    except DataError as error:
        raise DataError(f"source {source}: {where}: {error}") from error
