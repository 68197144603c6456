"""How far a folder of generated videos is: begun with which settings, and whether it is complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hapvr.errors import DataError

_STATE_FILE = "corpus.json"


def begin(folder: Path, *, fingerprint: str) -> None:
    """Make `folder` with a `videos/` inside, unless an earlier run of equal settings did.

    What other settings generated there is removed; a non-empty folder that holds anything else raises DataError.
    """
    state = _read(folder)
    if state.get("fingerprint") == fingerprint:
        return
    if state:
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"generated videos: {folder} holds something else; name another output folder or source")
    (folder / "videos").mkdir(parents=True)
    _write(folder, fingerprint=fingerprint, complete=False)


def is_complete(folder: Path, *, fingerprint: str) -> bool:
    """Whether a run with these settings came to its end there."""
    return _read(folder) == {"fingerprint": fingerprint, "complete": True}


def finish(folder: Path, *, fingerprint: str) -> None:
    """Say that everything is in place; call it last."""
    _write(folder, fingerprint=fingerprint, complete=True)


def _read(folder: Path) -> dict[str, object]:
    """The state, or {} where there is none."""
    try:
        state = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise DataError(f"generated videos: {folder / _STATE_FILE} is damaged ({error}); remove the folder") from error
    return dict(state)


def _write(folder: Path, *, fingerprint: str, complete: bool) -> None:
    part = folder / f"{_STATE_FILE}.part"
    part.write_text(json.dumps({"fingerprint": fingerprint, "complete": complete}) + "\n", encoding="utf-8")
    part.replace(folder / _STATE_FILE)
