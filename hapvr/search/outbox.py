"""Messages that wait to be delivered, in a SQLite file that survives a kill at any moment.

watch/outbox.db     a row per message, for ever: its id, its text, how often it was tried, and when it was delivered
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hapvr.errors import DamagedError
from hapvr.settings import explain
from hapvr.storage.filesystem import DataRoot

PLACE = "watch/outbox.db"
_TABLE = """CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    next_s REAL NOT NULL DEFAULT 0, problem TEXT NOT NULL DEFAULT '', delivered_s REAL)"""


@dataclass(frozen=True, kw_only=True)
class Message:
    """id: the same for the same event. attempts: so far, all in vain. problem: of the last one."""

    id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    body: str
    attempts: Annotated[int, Field(ge=0, lt=2**31)]
    problem: str


_MESSAGES = TypeAdapter(list[Message])


class Outbox:
    """The messages of a data root. Raises DataError on an object store, DamagedError for a file that is no database."""

    def __init__(self, root: DataRoot) -> None:
        self._path = root.local_path(PLACE)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def put(self, messages: Mapping[str, str]) -> int:
        """Keep messages (id -> text) until they are delivered; returns how many were new. An id that was ever put is
        passed over, delivered or not."""
        with self._open() as database:
            before = database.total_changes
            database.executemany("INSERT OR IGNORE INTO messages (id, body) VALUES (?, ?)", list(messages.items()))
            return database.total_changes - before

    def due(self, now_s: float, *, max_wait_s: float = math.inf) -> list[Message]:
        """Undelivered messages whose wait is over, the oldest first.

        max_wait_s: no wait is longer; a message that is due later than that was put off before the clock was set back.
        """
        with self._open() as database:
            rows = database.execute(
                "SELECT id, body, attempts, problem FROM messages WHERE delivered_s IS NULL AND "
                "(next_s <= ? OR next_s > ?) ORDER BY number",
                (now_s, now_s + max_wait_s),
            ).fetchall()
        names = ("id", "body", "attempts", "problem")
        try:
            return _MESSAGES.validate_python([dict(zip(names, row, strict=True)) for row in rows])
        except ValidationError as error:
            raise self._damaged(explain(error)) from error

    def delivered(self, message_id: str, now_s: float) -> None:
        """Never give this message again."""
        self._update("delivered_s = ?, problem = ''", (now_s, message_id))

    def failed(self, message_id: str, problem: str, *, next_s: float) -> None:
        """Give this message again from `next_s` on."""
        self._update("attempts = attempts + 1, problem = ?, next_s = ?", (problem[:500], next_s, message_id))

    def counts(self) -> tuple[int, int]:
        """How many messages were delivered, and how many wait."""
        with self._open() as database:
            delivered, total = database.execute("SELECT COUNT(delivered_s), COUNT(*) FROM messages").fetchone()
        return int(delivered), int(total) - int(delivered)

    def check(self) -> None:
        """Read the whole file. Raises DamagedError for one that is damaged."""
        with self._open() as database:
            (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)

    def _update(self, change: str, values: tuple[object, ...]) -> None:
        with self._open() as database:
            database.execute(f"UPDATE messages SET {change} WHERE id = ?", values)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk when the block ends."""
        try:
            database = sqlite3.connect(self._path, timeout=60)
            try:
                database.execute("PRAGMA synchronous = FULL")
                with database:
                    database.execute(_TABLE)
                    yield database
            finally:
                database.close()
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> DamagedError:
        return DamagedError(
            f"watch: {self._path} cannot be used ({reason}); restore it from a copy, or remove it: then every match is "
            "announced again"
        )
