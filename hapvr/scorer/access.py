"""What a request may read, how much it may cost and how long it may take, and whose turn it is to
compute."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from hapvr.errors import ConfigError, VideoError
from hapvr.settings import ServingConfig, explain

ROOTS_VARIABLE = "HAPVR_ALLOWED_ROOTS"
HOSTS_VARIABLE = "HAPVR_ALLOWED_HOSTS"
ANY_HOST = "*"


@dataclass(frozen=True)
class Access:
    """Which videos a request may name."""

    roots: tuple[Path, ...] | None = None
    """Folders whose files may be read, links followed; None for all."""
    hosts: frozenset[str] = frozenset()
    """Hosts that videos may be fetched from. An allowed host may redirect to another one: list only
    hosts that are trusted not to."""

    def local_path(self, name: str) -> Path:
        """The file of this name. Raises VideoError `not_allowed` outside the roots, whether or not
        the file exists. With roots, links are resolved, so that a link that is changed meanwhile
        leads nowhere else."""
        if self.roots is None:
            return Path(name)
        with suppress(OSError, ValueError, RuntimeError):  # of names that are not paths
            path = Path(name).resolve()
            if any(path.is_relative_to(root) for root in self.roots):
                return path

        raise VideoError(
            "not_allowed", f"video: {name!r} lies outside the folders of {ROOTS_VARIABLE}"
        )

    def check_url(self, url: str) -> None:
        """Raise VideoError `not_allowed` unless this is an http(s) URL of a host that videos may be
        fetched from."""
        host = scheme = ""
        with suppress(ValueError):  # of what is not a URL
            address = urlsplit(url)
            host = address.hostname or ""  # in lower case, as the scheme
            scheme = address.scheme

        if scheme not in ("http", "https"):
            raise VideoError("not_allowed", f"video: {url!r}: expected a path or an http(s) URL")
        if ANY_HOST not in self.hosts and host not in self.hosts:
            raise VideoError(
                "not_allowed",
                f"video: {url}: host {host!r} is not in {HOSTS_VARIABLE}; fetch the file, or "
                "allow the host",
            )


def access_from_environment(environ: Mapping[str, str] = os.environ) -> Access:
    """What the environment allows. HAPVR_ALLOWED_ROOTS: folders, separated as in PATH; unset: all.
    HAPVR_ALLOWED_HOSTS: names, separated by commas, or *; unset: none. Raises ConfigError for a
    root that is not a folder: a typo must not open or close more than was meant."""
    roots = None
    if ROOTS_VARIABLE in environ:
        roots = tuple(
            Path(name).resolve() for name in environ[ROOTS_VARIABLE].split(os.pathsep) if name
        )
        missing = [root for root in roots if not root.is_dir()]
        if missing:
            raise ConfigError(
                f"{ROOTS_VARIABLE}: {missing[0]} is not a folder; list folders separated by "
                f"{os.pathsep!r}"
            )

    hosts = {name.strip().lower() for name in environ.get(HOSTS_VARIABLE, "").split(",")}
    return Access(roots, frozenset(hosts - {""}))


def limits_from_environment(
    stored: ServingConfig, environ: Mapping[str, str] = os.environ
) -> ServingConfig:
    """The limits stored with a model, replaced by HAPVR_MAX_PAIRS and so on where set. Raises
    ConfigError for a wrong value."""
    given = {name: environ.get(f"HAPVR_{name.upper()}") for name in ServingConfig.model_fields}
    try:
        return ServingConfig.model_validate(
            stored.model_dump() | {key: value for key, value in given.items() if value}
        )
    except ValidationError as error:
        name, problem = explain(error).split(":", maxsplit=1)
        raise ConfigError(f"HAPVR_{name.upper()}:{problem}") from error


class Deadline:
    """A moment `limit_s` seconds from now; None: never. `cancel` makes it pass at once, from any
    thread."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s  # None once it is canceled, too
        self._end_s = math.inf if limit_s is None else time.monotonic() + limit_s

    def wait_s(self) -> float:
        """The seconds that are left, above 0 and at most a day."""
        return min(max(self._end_s - time.monotonic(), 0.001), 24 * 3600.0)

    def passed(self) -> bool:
        return time.monotonic() >= self._end_s

    def check(self) -> None:
        """Raise VideoError `timeout` if the moment has passed."""
        if self.passed():
            raise self.error()

    def cancel(self) -> None:
        """Let the moment pass now: nobody waits for the request any more."""
        self._limit_s = None
        self._end_s = time.monotonic()

    def error(self) -> VideoError:
        """The error of a row that was not done in time."""
        if self._limit_s is None:
            return VideoError(
                "canceled", "request: it was canceled; send it again if it is still wanted"
            )
        return VideoError(
            "timeout", f"request: not done after {self._limit_s:g} s; ask for less in one request"
        )


class ComputeLock:
    """A lock that threads get in the order in which they asked for it. Each thread holds it for one
    batch, so a short request waits for one batch of a long request and not for all of it. With
    `threading.Lock` the long request would usually take the lock again before the other thread
    wakes up."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def hold(self, deadline: Deadline) -> Iterator[None]:
        """Hold the lock while the block runs. Raises VideoError `timeout` if the deadline passes
        before its turn comes."""
        deadline.check()
        mine = object()
        with self._turn:
            self._waiting.append(mine)
            if not self._turn.wait_for(lambda: self._waiting[0] is mine, deadline.wait_s()):
                self._waiting.remove(mine)
                raise deadline.error()

        try:
            yield
        finally:
            with self._turn:
                self._waiting.popleft()
                self._turn.notify_all()
