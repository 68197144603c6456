"""Files that are out of the way while something replaces them: `.set_aside/<unit>/<name>`.

The files of a unit are replaced together. A unit is removed only once the replacements of its files
were verified; otherwise, and after a kill, its files go back.
"""

import posixpath
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.fs as pafs

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE
from hapvr.errors import DataError
from hapvr.files import PART_SUFFIX

FOLDER = ".set_aside"


@contextmanager
def set_aside(root: DataRoot, *names: str, verify: Callable[[], object]) -> Iterator[None]:
    """Move files away while the block makes their replacements, and back if it fails.

    names: those that do not exist are skipped.
    verify: raises DataError unless the replacements are whole on the disk.

    The caller holds `DataRoot.care_lock`; steps that make the same files wait. Raises what the
    block and `verify` raise.
    """
    unit = _free_unit(root)
    with root.lock(_lock_name(names[0])):
        moved = [name for name in names if root.exists(name)]
        for name in moved:
            _move(root, name, f"{unit}/{name}")
        try:
            yield
            verify()
        except BaseException:
            _put_back(root, unit, moved)
            raise

        root.delete_folder(unit)


def put_back_unreplaced(root: DataRoot) -> None:
    """Undo what a killed process has begun: a unit goes back if the place of one of its files is
    empty. The caller holds `DataRoot.care_lock`."""
    for unit in _units(root):
        names = _names(root, unit)
        if not names:
            root.delete_folder(unit)
            continue

        with root.lock(_lock_name(names[0])):
            if not all(root.exists(name) for name in names):
                _put_back(root, unit, names)


def is_empty(root: DataRoot) -> bool:
    """Whether no files are set aside."""
    return not any(_names(root, unit) for unit in _units(root))


def remove_all(root: DataRoot) -> None:
    """Remove everything that is set aside, once all replacements were verified."""
    for unit in _units(root):
        root.delete_folder(unit)


def remove_of(root: DataRoot, folders: Collection[str]) -> None:
    """Remove the files set aside from folders of these names, at any depth."""
    for unit in _units(root):
        for name in _names(root, unit):
            if not set(folders).isdisjoint(name.split("/")[:-1]):
                root.delete(f"{unit}/{name}")


def _lock_name(name: str) -> str:
    """The lock of the step that makes a file: of its shard, of the shard that fetches it, or of the
    manifest, under which videos are generated."""
    kind, _, rest = posixpath.dirname(name).partition("/")
    if kind == "downloads":
        return f"{VIDEOS_STAGE}/{rest}"
    return MANIFEST_STAGE if kind == "corpus" else posixpath.dirname(name)


def _units(root: DataRoot) -> list[str]:
    """The folders of all units, the newest first: only our own folders, never links to somewhere
    else."""
    numbers = sorted(int(name) for name in root.list_folders(FOLDER) if name.isdecimal())
    units = [f"{FOLDER}/{number}" for number in reversed(numbers)]
    return [unit for unit in units if not _is_behind_link(root, unit)]


def _free_unit(root: DataRoot) -> str:
    taken = {int(name) for name in root.list_folders(FOLDER) if name.isdecimal()}
    return f"{FOLDER}/{max(taken, default=0) + 1}"


def _names(root: DataRoot, unit: str) -> list[str]:
    """The files of a unit, by their names below the root."""
    base = root.path(unit)
    selector = pafs.FileSelector(base, allow_not_found=True, recursive=True)
    files = [info.path for info in root.filesystem.get_file_info(selector) if info.is_file]
    names = [path.removeprefix(f"{base}/") for path in files]
    whole = [name for name in names if not name.endswith(PART_SUFFIX)]
    return sorted(name for name in whole if not _is_behind_link(root, f"{unit}/{name}"))


def _is_behind_link(root: DataRoot, name: str) -> bool:
    return root.local is not None and Path(root.path(name)).resolve() != Path(root.path(name))


def _put_back(root: DataRoot, unit: str, names: Collection[str]) -> None:
    """Put a unit back. Every place is emptied first, so that after a kill the unit is either put
    back next time or is already back as a whole."""
    for name in names:
        root.delete(name)
    for name in names:
        _move(root, f"{unit}/{name}", name)
    root.delete_folder(unit)


def _move(root: DataRoot, name: str, target: str) -> None:
    """Rename a file, or copy it where renaming is impossible: between file systems, and in an
    object store."""
    with suppress(OSError, DataError):
        root.local_path(target).parent.mkdir(parents=True, exist_ok=True)
        root.local_path(name).rename(root.local_path(target))
        root.note_made(target)
        return

    with root.open(name) as source, root.write(target) as stream:
        shutil.copyfileobj(source, stream)
    root.delete(name)
