"""Errors that a user can act on. Every message says what failed, what was found, what is wanted and
what to do next.

And which parts of HAP-VR are installed: `hapvr[score]` compares videos, `hapvr[search]` also
searches an index and serves it, `hapvr[registry]` asks MLflow's servers, `hapvr[all]` does
everything.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

FULL_HINT = "install the rest with `pip install '.[all]'` in a checkout"


class HapvrError(Exception):
    """Base of all errors raised on purpose by this package."""


class ArgumentError(HapvrError, ValueError):
    """A function argument has a wrong shape, range or type; the message names the argument, its
    value and the limits."""


class ConfigError(HapvrError, ValueError):
    """A configuration file or value is wrong; the message names the key and the allowed values."""


class DataError(HapvrError):
    """Stored data is missing, damaged, or was made with other settings than the reader's."""


class DamagedError(DataError):
    """A stored file is missing, cut off or damaged; the message names it and says what makes it
    again."""


class RegistryError(DataError):
    """A model registry does not answer, or with an error of its own, so it is not known whether
    what was asked for is there."""


class RegistryBusyError(RegistryError):
    """Another process holds the database of a model registry: it answers again when that ends."""


class ServiceError(HapvrError):
    """A search service does not answer, or answers as none of this version does."""


class MissingPartError(HapvrError, ImportError):
    """This needs a part of HAP-VR that is not installed; the message names the installation that
    has it."""


class VideoError(HapvrError):
    """A video cannot be used. `reason` is a short code that becomes a column of the video's row."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[VideoError], tuple[str, str]]:
        """Worker processes send these errors to their parent."""
        return VideoError, (self.reason, str(self))


def without_logins(text: str) -> str:
    """A text without the names and passwords of addresses in it."""
    return re.sub(r"(?<=//)[^/?#\s]*@", "", text)


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not imported."""
    return find_spec(package) is not None


def on_processor(device: str) -> bool:
    """Whether networks run on a processor with this setting of `device`, judged without importing
    torch."""
    return device == "cpu" or (
        device == "auto" and not (is_installed("torch") and Path("/dev/nvidiactl").exists())
    )
