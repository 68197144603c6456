"""What could be done about groups of copies, as a plan for people to review: a table, or a script
that acts only when told to, keeps a record and can undo what it did."""

import hashlib
import os
import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from hapvr.files import write_atomic
from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import GroupMember
from hapvr.tables import export_table

SUFFIXES = (".json", ".csv", ".sh")
SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("action", pa.string()),
        ("video_id", pa.string()),
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("keep_path", pa.string()),
        ("keep_sha256", pa.string()),
        ("reason", pa.string()),
        ("num_bytes", pa.int64()),
    ]
)
SCRIPT = Path(__file__).with_name("plan.sh")
"""Beginning of a plan as a script, before its calls of `link` and `move`."""
MAX_NAME_BYTES = 240
"""Of a moved file; file systems allow 255, and a digest comes before the name."""
MAX_SUFFIX_BYTES = 20


def write_plan(place: Path, members: Sequence[GroupMember]) -> None:
    """Write the plan of these groups, whole: a row per member that has a file, with its action, see
    `action_of`.

    place: ends in one of SUFFIXES
    """
    if place.suffix.lower() == ".sh":
        with write_atomic(place) as part:
            part.write_text(_script(members), encoding="utf-8", errors="surrogateescape")
        return

    table = pa.Table.from_pylist(_rows(members), schema=SCHEMA)
    with write_atomic(place) as part:
        export_table(table, part, place.suffix.lower())


def moved_paths(members: Sequence[GroupMember]) -> list[str]:
    """The paths, as tables have them, of the files that a plan of these groups moves."""
    return [row["path"] for row in _rows(members) if row["action"] == "move"]


def action_of(member: GroupMember, kept: VideoMetadata | None) -> str:
    """What to do with a member.

    keep; link, for a file of the same bytes; linked, for one that already is the kept file under
    another name; move, for another copy; look, where no copy is named to keep, and for one that may
    be no worse.

    kept: the file that it is replaced by, see `_Kept`
    """
    if kept is None or kept.path is None:
        return "look"
    if member.keep:
        return "keep"
    if member.stays:
        return "look"
    if member.metadata.sha256 != kept.sha256:
        return "move"
    path = member.metadata.path
    return "linked" if path is not None and _is_same_file(path, kept.path) else "link"


def needless(members: Iterable[GroupMember]) -> list[GroupMember]:
    """The members whose files are more than needed: all but the kept ones of their group and those
    that may be no worse, or but the first one where none is named. Of the names of one file, as
    hard links are, only one."""
    more = []
    for _, group in groupby(members, key=lambda member: member.group):
        inside = list(group)
        kept = [member for member in inside if member.keep or member.stays] or inside[:1]
        files = {_identity(member) for member in kept}
        for member in inside:
            file = _identity(member)
            if file not in files:
                files.add(file)
                more.append(member)

    return more


def _identity(member: GroupMember) -> object:
    """What names of one file share."""
    path = member.metadata.path
    if path is None:
        return member.video_id
    try:
        status = path.stat()
    except OSError:
        return member.video_id

    return status.st_dev, status.st_ino


def _is_same_file(path: Path, kept: Path) -> bool:
    try:
        return path.samefile(kept)
    except OSError:
        return False


class _Kept:
    """What the files of a plan are replaced by."""

    def __init__(self, members: Sequence[GroupMember]) -> None:
        self._named: dict[str, VideoMetadata] = {}
        """Group -> the file that is named to keep; protected ones come behind it."""
        self._files: dict[str, VideoMetadata] = {}
        """Video id -> its file, where it is there."""
        for member in members:
            file = member.metadata
            if file.path is None:
                continue
            if os.path.exists(file.path):
                self._files[member.video_id] = file
            if member.keep:
                self._named.setdefault(member.group, file)

    def of(self, member: GroupMember) -> VideoMetadata | None:
        """The file that is named to keep. Where none is, one of the same bytes, as it does not
        matter which of these is kept; None where there is none."""
        named = self._named.get(member.group)
        return named or self._files.get(member.same_file_as)


def _rows(members: Sequence[GroupMember]) -> list[dict[str, Any]]:
    """A row of the plan for each member that has a file."""
    kept = _Kept(members)
    rows = []
    for member in members:
        file = member.metadata
        best = kept.of(member)
        if file.path is None:
            continue
        row = {
            "group": member.group,
            "action": action_of(member, best),
            "video_id": member.video_id,
            "path": file.path_text,
            "sha256": file.sha256,
            "reason": member.reason,
            "num_bytes": file.num_bytes,
        }
        if best is not None:
            row |= {"keep_path": best.path_text, "keep_sha256": best.sha256}
        rows.append(row)

    return rows


def _script(members: Sequence[GroupMember]) -> str:
    """The plan as a script."""
    kept = _Kept(members)
    lines = [SCRIPT.read_text(encoding="utf-8")]
    for member in members:
        file = member.metadata
        best = kept.of(member)
        if file.path is None or best is None or best.path is None:
            continue
        action = action_of(member, best)
        words = [str(word) for word in (best.path, best.num_bytes, best.sha256)]
        words += [str(word) for word in (file.path, file.num_bytes, file.sha256)]
        if action == "link":
            lines.append(f"link {shlex.join(words)}\n")
        elif action == "move":
            words.append(aside_name(file.path, file.sha256))
            lines.append(f"move {shlex.join(words)}\n")

    lines.append("finish\n")
    return "".join(lines)


def aside_name(path: Path, sha256: str) -> str:
    """The name of a moved file, which no other file gets: a digest of its place and content, then
    its own name, the end of whose stem is cut off where it would be too long."""
    digest = hashlib.blake2b(os.fsencode(path) + sha256.encode(), digest_size=6).hexdigest()
    name = os.fsencode(path.name)
    if len(name) > MAX_NAME_BYTES:
        suffix = os.fsencode(path.suffix)[:MAX_SUFFIX_BYTES]
        stem = name[: MAX_NAME_BYTES - len(suffix)]
        # a character is not cut in two
        name = stem.decode("utf-8", errors="ignore").encode() + suffix

    return f"{digest}-{os.fsdecode(name)}"
