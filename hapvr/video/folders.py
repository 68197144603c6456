"""The files below a folder of videos, and those among them that are not read."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hapvr.errors import DataError

VIDEO_SUFFIXES = frozenset(
    {
        ".264",
        ".265",
        ".3g2",
        ".3gp",
        ".asf",
        ".avi",
        ".divx",
        ".dv",
        ".f4v",
        ".flv",
        ".gif",
        ".h264",
        ".h265",
        ".hevc",
        ".ivf",
        ".lrv",
        ".m1v",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mjpeg",
        ".mkv",
        ".mod",
        ".mov",
        ".mp4",
        ".mpe",
        ".mpeg",
        ".mpg",
        ".mpv",
        ".mts",
        ".mxf",
        ".ogm",
        ".ogv",
        ".qt",
        ".rm",
        ".rmvb",
        ".tod",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
        ".wtv",
        ".y4m",
    }
)
SYSTEM_FOLDERS = (
    "$recycle.bin",
    "recycler",
    "recycled",
    "#recycle",
    "@recycle",
    "@recently-snapshot",
    "@eadir",
    "#snapshot",
    "~snapshot",
    "system volume information",
    "lost+found",
    "copies-aside",
)
"""Names, in lower case, of folders for recycle bins, thumbnails and snapshots of systems and
network storage, and for files that a plan has set aside; names that begin with a dot are hidden."""
ASIDE_MARKER = ".hapvr-aside"
"""A file in each folder to which a plan has moved copies, whatever the folder's name."""


@dataclass(frozen=True)
class FolderListing:
    """The result of listing a folder."""

    files: tuple[Path, ...]
    """that may be read"""
    excluded: Mapping[str, int]
    """folder or pattern -> how many videos it excludes"""
    outside: tuple[Path, ...]
    """links that lead out of the folder, which are not followed"""
    unlisted: tuple[str, ...]
    """why folders could not be read"""


def list_folder(root: Path, *, exclude: Sequence[str] = (), of: str = "") -> FolderListing:
    """All files except hidden ones, those in hidden, linked and system folders, those that a
    pattern excludes, and those in folders that may not be read.

    exclude: see `is_excluded`. of: begins the message of the DataError for a folder that is missing
    or cannot be read."""

    def refuse(error: OSError) -> None:
        problem = f"{of}{error.filename} cannot be listed ({error.strerror})"
        if Path(error.filename) == root:
            raise DataError(f"{problem}; name one you may read") from error
        unlisted.append(f"{problem}; its files are left out")

    top = Path(os.path.realpath(root))
    files = list[Path]()
    outside = list[Path]()
    excluded = Counter[str]()
    unlisted = list[str]()
    for place, folders, names in os.walk(root, onerror=refuse):
        folder = Path(place)
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = []
        links = _links(folder, shown)
        outside += [path for path in links if _leads_outside(path, top)]
        for name in shown:
            path = folder / name
            if path in links:
                continue
            pattern = _excluding(path, root, exclude)
            if pattern is None:
                folders.append(name)
            else:
                excluded[pattern] += _num_videos(path)

        for name in names:
            path = folder / name
            if name.startswith("."):
                continue
            pattern = _matching(path.relative_to(root), exclude)
            if pattern is None:
                files.append(path)
            else:
                excluded[pattern] += path.suffix.lower() in VIDEO_SUFFIXES

    return FolderListing(tuple(files), excluded, tuple(outside), tuple(unlisted))


def _links(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names if os.path.islink(folder / name)]


def _leads_outside(link: Path, top: Path) -> bool:
    # unlike Path.resolve, realpath takes links that point at each other in a circle
    target = Path(os.path.realpath(link))
    return os.path.exists(target) and not target.is_relative_to(top)


def _excluding(folder: Path, root: Path, exclude: Sequence[str]) -> str | None:
    """Why a folder is not read: the name of a system folder, or a pattern; None where it is
    read."""
    if folder.name.lower() in SYSTEM_FOLDERS or os.path.exists(folder / ASIDE_MARKER):
        return folder.name
    return _matching(folder.relative_to(root), exclude)


def _matching(path: Path, exclude: Sequence[str]) -> str | None:
    return next((pattern for pattern in exclude if is_excluded(path, pattern)), None)


def is_excluded(path: Path, pattern: str) -> bool:
    """Whether a path below a source's folder is excluded by a pattern of `fnmatch`, whatever its
    case: one without a slash means any part of the path, one with a slash the path from its
    beginning, or a folder around it."""
    text = path.as_posix().lower()
    wanted = pattern.lower().strip("/")
    if "/" not in wanted:
        return any(fnmatchcase(part, wanted) for part in text.split("/"))
    above = [parent.as_posix().lower() for parent in path.parents]
    return any(fnmatchcase(place, wanted) for place in (text, *above))


def _num_videos(folder: Path) -> int:
    """How many files below a folder have a video's suffix."""
    names = (name for _, _, names in os.walk(folder) for name in names)
    return sum(Path(name).suffix.lower() in VIDEO_SUFFIXES for name in names)
