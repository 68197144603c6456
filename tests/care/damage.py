"""Damage to files, and which of them `hapvr verify` names."""

import re
from pathlib import Path

from hapvr.care.verify import FileCheck, verify_root
from hapvr.steps.project import Project

CUT = {".json", ".parquet"}
MADE_FROM_OTHERS = {".md", ".png", ".csv", ".jsonl", ".lock", ".yaml"}
"""Files that people read, or that say again what lies elsewhere."""


def damage(path: Path) -> None:
    """Cut a text or table in the middle; flip one bit of what is neither. Of a table, a bit may
    mean nothing."""
    data = bytearray(path.read_bytes())
    if path.suffix in CUT:
        del data[len(data) // 2 :]
    else:
        data[len(data) // 3] ^= 1

    path.unlink()  # a video may be a link to the user's
    path.write_bytes(data)


def kinds_of_files(root: Path, folder: str) -> list[Path]:
    """A file of each kind below a folder: those whose names differ by digits only are of one
    kind."""
    paths = sorted(path for path in (root / folder).rglob("*") if path.is_file())
    kinds = {
        re.sub(r"\d+", "", str(path)): path for path in paths if path.suffix not in MADE_FROM_OTHERS
    }
    return list(kinds.values())


def damaged(project: Project) -> list[FileCheck]:
    return [check for check in verify_root(project.root) if check.state != "ok"]


def names(checks: list[FileCheck], path: Path) -> bool:
    return any(path.name in check.message for check in checks)
