"""Whether the files of an index are those that its index.json names."""

from collections.abc import Callable, Iterable, Mapping

from hapvr.data.checked_files import CheckedFiles
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError
from hapvr.search.frame_index import REBUILD, STATE_FILE, IndexState, read_state


def require_whole(root: DataRoot, state: IndexState) -> None:
    """Raise DamagedError unless every file of an index is what was written, or the index was
    replaced meanwhile. See `CheckedFiles` for when a file is read."""
    checked = CheckedFiles(root)
    for name, digest in state.files.items():
        try:
            stored = checked.sha256(name)
        except DataError as error:  # a pipe, or a disk that does not give it back
            problem = f"cannot be read ({error.__cause__ or error})"
            place = root.url_of(name)
            raise DamagedError(f"search: {place} {problem}; {REBUILD}") from error

        if stored != digest and not is_replaced(root, state):
            raise DamagedError(_problem(root, name, stored))

    checked.save()


def problems_of_files(
    root: DataRoot, state: IndexState, passed: set[str], *, until: Callable[[], bool]
) -> list[str]:
    """A sentence for each file that is missing or holds other bytes; all are read.

    passed: digests of files that need not be read again; those of this call are added
    until: true ends the call
    """
    problems = []
    for name, digest in state.files.items():
        if digest in passed or until():
            continue
        stored = root.sha256(name) if root.exists(name) else ""
        if stored == digest:
            passed.add(digest)
        else:
            problems.append(_problem(root, name, stored))

    return problems


def is_replaced(root: DataRoot, state: IndexState) -> bool:
    """Whether there is a newer version: files of this one may then be gone by right."""
    return read_state(root).revision != state.revision


def foreign_state(root: DataRoot) -> str:
    """What is wrong where index.json names other frames than those that are stored."""
    return f"search: {root.url_of(STATE_FILE)} is of another table; {REBUILD}"


def file_digests(
    root: DataRoot, names: Iterable[str], recorded: Mapping[str, str]
) -> dict[str, str]:
    """Name -> SHA-256 of files whose content never changes.

    recorded: of those that need not be read again
    """
    checked = CheckedFiles(root)
    digests = {name: recorded.get(name) or checked.sha256(name) for name in names}
    checked.save()
    return digests


def _problem(root: DataRoot, name: str, stored: str) -> str:
    """What is wrong with a file that has another digest than the recorded one.

    stored: its digest; "" if it is missing
    """
    problem = "is not what was written" if stored else "is missing"
    return f"search: {root.url_of(name)} {problem}; {REBUILD}"
