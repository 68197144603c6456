"""Watch lists and their queries: files and folders of the configuration, and queries of searches
that people watch for."""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import IO

from hapvr.config import WatchList
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError, VideoError
from hapvr.files import READ_BYTES, file_sha256, open_regular
from hapvr.search.marks import is_digest
from hapvr.search.match import printable
from hapvr.steps.project import Project
from hapvr.video.folders import VIDEO_SUFFIXES
from hapvr.video.sources import is_picture, query_files, read_lines, text_of_path

LISTS = "watch/lists"
"""Has a folder for each list that was made of the query of a search, with the query's file, named
after its SHA-256."""


@dataclass(frozen=True)
class WatchQuery:
    """A file of a list, or a list that cannot be read."""

    watch_list: WatchList
    path: Path
    sha256: str
    """"" where the file cannot be read"""
    problem: str = ""
    """of a list, or of the copy of a query"""

    @property
    def name(self) -> str:
        return text_of_path(self.path)


def watch_lists(project: Project) -> list[WatchList]:
    """The lists of the configuration, and those of `make_watch_list`."""
    root = project.root
    lists = list(project.config.watch.lists)
    for name in root.list_folders(LISTS):
        if root.list_files(f"{LISTS}/{name}"):
            lists.append(WatchList.model_construct(name=name, path=root.url_of(f"{LISTS}/{name}")))

    return lists


def make_watch_list(project: Project, file: Path, *, name: str, sha256: str, max_bytes: int) -> str:
    """Make a list of what a search was for, with a copy of its file; returns the name of the list.

    name: of the file, or the id of the video
    sha256: of the file that was searched for; "" for what was no file

    Raises: VideoError `not_kept` where there is no such file, and `replaced` where it is another
        one by now, or has more than max_bytes; DataError if the data root is not a local folder,
        or is full.
    """
    root = project.root
    root.local_path(LISTS)
    if not sha256 or not os.path.isfile(file):
        raise VideoError(
            "not_kept",
            f"watch: the file of {name} is not at hand; send it along, or name its folder under "
            "watch.lists",
        )

    replaced = VideoError(
        "replaced",
        f"watch: the file of {name} is another one now, or has more than {max_bytes} bytes; search "
        "for it again, or name its folder under watch.lists",
    )
    if file.stat().st_size > max_bytes or file_sha256(file) != sha256:
        raise replaced
    place = Path(name)
    suffix = place.suffix.lower()
    if suffix not in VIDEO_SUFFIXES and not is_picture(place):
        suffix = ".mp4"
    with root.lock("watch-lists"):
        list_name = _name_of_list(project, place, sha256)
        copied = f"{LISTS}/{list_name}/{sha256}{suffix}"
        with root.write(copied) as copy, open_regular(file) as source:
            digest = _copy(source, copy)
            if digest != sha256:  # it was replaced meanwhile
                raise replaced

    return list_name


def _name_of_list(project: Project, place: Path, sha256: str) -> str:
    """What a list of this query is called: as the list that has it already, else after its file,
    with a number where others are called so."""
    taken = {watch_list.name for watch_list in project.config.watch.lists}
    for name in project.root.list_folders(LISTS):
        contents = {file.partition(".")[0] for file in project.root.list_files(f"{LISTS}/{name}")}
        if sha256 in contents:
            return name
        if contents:
            taken.add(name)

    words = re.sub(r"[\W_]+", "-", printable(place.stem).lower())[:40].strip("-")
    base = "query" if not words or is_digest(place.stem) else words
    names = chain([base], (f"{base}-{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy the rest of a file; returns its SHA-256."""
    digest = hashlib.sha256()
    while data := source.read(READ_BYTES):
        target.write(data)
        digest.update(data)

    return digest.hexdigest()


def check_watch_list(root: DataRoot, name: str) -> None:
    """Compare the copies of a list's queries with their names, which are their digests: a damaged
    copy would find nothing. Raises DamagedError."""
    for file in root.list_files(f"{LISTS}/{name}"):
        place = f"{LISTS}/{name}/{file}"
        if root.sha256(place) != file.partition(".")[0]:
            raise DamagedError(f"watch: {place} below {root.url} is not what was copied there")


def watch_queries(project: Project) -> list[WatchQuery]:
    """All queries of all lists, including files and lists that cannot be read."""
    queries: list[WatchQuery] = []
    root = project.root
    lists_folder = None if root.local is None else root.local / LISTS
    for watch_list in watch_lists(project):
        path = project.path(Path(watch_list.path))
        try:
            files = _files_of(path)
        except (OSError, ValueError, DataError) as error:
            cause = getattr(error, "strerror", None) or error  # its file is named beside it
            problem = (
                f"it cannot be read ({cause}); expected a folder, or a text file with a path in "
                "each line"
            )
            queries.append(WatchQuery(watch_list, path, "", problem))
        else:
            is_ours = path.parent == lists_folder
            queries += [_query(watch_list, file, is_ours=is_ours) for file in files]

    return queries


def _query(watch_list: WatchList, file: Path, *, is_ours: bool) -> WatchQuery:
    """A file of a list. is_ours: whether it is a copy that was named after its digest."""
    sha256 = _digest_or_none(file)
    problem = ""
    if is_ours and sha256 and sha256 != file.name.partition(".")[0]:
        problem = (
            f"watch: {file} is not what was copied there; remove the list, and search for the "
            "clip again to watch for it"
        )

    return WatchQuery(watch_list, file, sha256, problem)


def _files_of(path: Path) -> list[Path]:
    """The files of a folder, or those named in a text file. Raises OSError, ValueError and
    DataError if there are none, as on a drive that is offline."""
    if path.is_dir():
        files = list(query_files(path))
    else:
        files = [path.parent / line for line in read_lines(path, folder=path.parent)]

    if not files:
        raise ValueError("it has no video and no picture")
    return files


def _digest_or_none(file: Path) -> str:
    """SHA-256 of a file; "" if it cannot be read, and the search will say why."""
    with suppress(OSError, ValueError):
        status = file.stat()
        return _digest(file, status.st_size, status.st_mtime_ns)
    return ""


@lru_cache(maxsize=10_000)
def _digest(file: Path, _num_bytes: int, _modified_ns: int) -> str:
    """SHA-256 of a file, asked for at every tick, so it is remembered while size and time stay the
    same."""
    return file_sha256(file)
