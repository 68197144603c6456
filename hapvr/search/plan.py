"""What could be done about groups of copies, as a file for people to review: JSON, CSV, or a script for bash.

Nothing is done here. The script prints what it would do unless it is told to act, and leaves alone what is not as it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hapvr.files import write_atomic
from hapvr.search.duplicates import GroupMember
from hapvr.tables import export_table
from hapvr.video.sources import text_of_path

PLAN_SUFFIXES = (".json", ".csv", ".sh")
_TEXTS = ("group", "action", "video_id", "path", "sha256", "keep_path", "keep_sha256", "reason")
SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("num_bytes", pa.int64())])
SCRIPT = """\
#!/bin/bash
# A plan of `hapvr duplicates`: review it. `bash PLAN.sh` prints what it would do; `bash PLAN.sh --act` does it:
# files of the same bytes become hard links to the one that is kept, other copies move to $ASIDE. Nothing is deleted.
set -u
act=${1:-} ASIDE=${ASIDE:-./copies-aside} failed=0
as_planned() { # file, bytes, SHA-256
  [ -f "$1" ] && [ ! -L "$1" ] && [ "$(wc -c < "$1")" -eq "$2" ] && [ "$(sha256sum < "$1")" = "$3  -" ] && return
  printf 'gone, or changed since the plan was made; left alone: %q\\n' "$1" >&2; failed=1; return 1
}
run() { if [ "$act" = --act ]; then "$@" || { failed=1; return 1; }; else printf '%q ' would: "$@"; echo; fi; }
link() { # kept, bytes, SHA-256, copy, bytes, SHA-256
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && [ ! "$1" -ef "$4" ] || return
  run ln -T -- "$1" "$4.$3" && run mv -fT -- "$4.$3" "$4"
}
move() { # the same
  as_planned "${@:1:3}" && as_planned "${@:4:3}" && run mkdir -p -- "$ASIDE" || return
  if [ -e "$ASIDE/$6-${4##*/}" ]; then printf 'there already: %q\\n' "$ASIDE/$6-${4##*/}" >&2; failed=1
  else run mv -nT -- "$4" "$ASIDE/$6-${4##*/}"; fi
}
"""


def write_plan(place: Path, members: Sequence[GroupMember]) -> None:
    """Write the plan of these groups, whole. place: ends in one of PLAN_SUFFIXES.

    A row per member that has a file. action: keep; link, for a file of the same bytes; move, for another copy; look, in groups
    in which none is named to keep.
    """
    kept = {member.group: member.metadata for member in members if member.keep and member.metadata.path is not None}
    rows, lines = [], [SCRIPT]
    for member in members:
        file, best = member.metadata, kept.get(member.group)
        if file.path is None:
            continue
        action = "look" if best is None else "keep" if member.keep else "link" if file.sha256 == best.sha256 else "move"
        if best is not None and action in ("link", "move"):
            both = [str(part) for one in (best, file) for part in (one.path, one.num_bytes, one.sha256)]
            lines.append(f"{action} {shlex.join(both)}\n")
        of = {"keep_path": text_of_path(best.path), "keep_sha256": best.sha256} if best and best.path else {}
        row = {"path": text_of_path(file.path), "sha256": file.sha256, "num_bytes": file.num_bytes, **of}
        named = {"group": member.group, "video_id": member.video_id, "reason": member.reason}
        rows.append({"action": action, **named, **row})
    with write_atomic(place) as part:
        if place.suffix.lower() == ".sh":
            part.write_text("".join([*lines, "exit $failed\n"]), encoding="utf-8", errors="surrogateescape")
        else:
            export_table(pa.Table.from_pylist(rows, schema=SCHEMA), part, place.suffix.lower())
