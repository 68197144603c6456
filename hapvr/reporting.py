"""What a program of ours reports on standard error: its own warnings, and none of libraries."""

import json
import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

UNSAFE = re.compile(
    "[\0-\b\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and line end, directions, and bytes that are not UTF-8."""


def one_line(text: str) -> str:
    """A text without line ends, which names of files may have; they appear escaped."""
    return text.replace("\n", "\\n")


def escaped(text: str) -> str:
    """A text for a terminal: characters of file names that would steer it or turn the line are
    escaped as in JSON."""
    return UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def say_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any
) -> None:
    """Our own warnings as a line for people; those of libraries are for programmers, and are not
    shown."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(Path(__file__).parent):
        sys.stderr.write(escaped(f"warning: {one_line(str(message))}") + "\n")


def report_for_people() -> None:
    """Show warnings by `say_warning`, and let libraries not report on their own work. Call it
    before they are imported."""
    warnings.showwarning = say_warning
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    for name in ("timm", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
