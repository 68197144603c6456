"""Reads a registry's rows and tags. People and other programs may change them, so what cannot be
read counts as not written."""

import math
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

MAX_DIGITS = 15
"""The most digits that a number of a version or a promotion has."""


def count_of(text: object) -> int | None:
    """A whole number from an alias or a tag; None where it is not one."""
    digits = str(text)
    if len(digits) > MAX_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)


def measure_of(text: str | None) -> float | None:
    """A finite number from a tag; None where it is not one."""
    with suppress(ValueError):
        value = float(text or "")
        return value if math.isfinite(value) else None
    return None


def moment_of(text: str) -> datetime | None:
    """A time in ISO 8601; in UTC where it names no zone."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return None


def created_text(created_ms: object) -> str:
    """When a version was registered, ISO 8601, UTC; "" where the value is no time.

    created_ms: since 1970
    """
    with suppress(TypeError, ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(float(str(created_ms)) / 1000, UTC)
        return moment.isoformat(timespec="seconds")
    return ""


def is_place(text: object) -> bool:
    """Whether a text may be the address of a version's files, or their path."""
    if not isinstance(text, str) or "\0" in text or "%00" in text:
        return False
    with suppress(ValueError):
        address = urlsplit(text)
        return bool(address.netloc or address.path.strip("/"))

    return False
