"""What the webhook sends: matches of watch lists, and problems of the chain; each is kept until the
receiver has accepted it.

watch/outbox.db     SQLite: a row per message, forever: its id, its text, how often it was tried,
                    whether it was delivered, and when its condition was found last
"""

import hashlib
import hmac
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from hapvr.config import WebhookConfig
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError
from hapvr.files import digest_of, require_regular
from hapvr.steps.project import Project

OUTBOX_PLACE = "watch/outbox.db"
TIMEOUT_S = 10.0
"""For one message, from the name of the server to the last header of its answer."""
BUSY_S = 60.0
"""How long another process may write to the outbox."""
_TABLE = """CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY,
    id TEXT UNIQUE NOT NULL,
    body TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    key TEXT,
    seen_s REAL
)"""
_PUT = "INSERT OR IGNORE INTO messages (id, body, key, seen_s) VALUES (?, ?, ?, ?)"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_READABLE = "typeof(body) = 'text' AND json_valid(body) AND json_type(body) = 'object'"
QUIET_S = 86_400.0
"""A condition that was not found for so long is a new one when it is found again."""


@dataclass(frozen=True)
class Concern:
    """A message for the webhook."""

    event: str
    key: str
    """the same for the same thing"""
    text: str
    """a sentence with the next step"""
    lasting: bool = False
    """whether it is a condition, which is told again when it comes back after QUIET_S"""


class AlertOutbox:
    """The messages of a data root. Raises DataError on an object store and where another process
    writes for a minute, DamagedError for a file that is not a database. It survives a kill at any
    moment."""

    def __init__(self, root: DataRoot) -> None:
        self._root = root
        self._path = root.local_path(OUTBOX_PLACE)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def put(self, messages: Mapping[str, str]) -> int:
        """Keep messages (id -> text) until they are delivered; returns how many were new. An id
        that was ever put is passed over."""
        with self._open() as database:
            before = database.total_changes
            database.executemany(_PUT, [(*message, "", 0.0) for message in messages.items()])
            return database.total_changes - before

    def put_concerns(self, concerns: Iterable[Concern]) -> None:
        """As `put`; of a condition that lasts another message is kept once it was not found for
        QUIET_S."""
        now_s = time.time()
        with self._open() as database:
            for concern in concerns:
                if concern.lasting and _is_known(database, concern, now_s):
                    continue
                message_id, body = _message(concern, now_s)
                database.execute(_PUT, (message_id, body, concern.key, now_s))

    def due(self) -> list[tuple[str, str]]:
        """Ids and bodies of undelivered messages: those that were tried least, the oldest first."""
        asked = (
            f"SELECT id, body FROM messages WHERE NOT delivered AND {_READABLE} ORDER BY "
            "attempts, number"
        )
        with self._open() as database:
            return database.execute(asked).fetchall()

    def tried(self, message_id: str, *, delivered: bool) -> None:
        """A message that was delivered is never given again."""
        counted = "UPDATE messages SET attempts = attempts + 1, delivered = ? WHERE id = ?"
        with self._open() as database:
            database.execute(counted, (delivered, message_id))

    def forget(self, values: Collection[str]) -> None:
        """Remove the messages in which one of these texts is a value, and their bytes."""
        with self._open() as database:
            database.execute("PRAGMA secure_delete = ON")
            for name, body in database.execute(
                f"SELECT id, body FROM messages WHERE {_READABLE}"
            ).fetchall():
                if not {str(value) for value in json.loads(body).values()}.isdisjoint(values):
                    database.execute("DELETE FROM messages WHERE id = ?", (name,))

    def counts(self) -> tuple[int, int]:
        """How many messages were delivered, and how many wait."""
        with self._open() as database:
            delivered, total = database.execute(
                "SELECT TOTAL(delivered), COUNT(*) FROM messages"
            ).fetchone()
        return int(delivered), int(total) - int(delivered)

    def check(self) -> None:
        """Read the whole file, if there is one. Raises DamagedError for one that is damaged."""
        if not self._path.exists():
            return
        with self._open() as database:
            (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            (num_unreadable,) = database.execute(
                f"SELECT COUNT(*) FROM messages WHERE NOT ({_READABLE})"
            ).fetchone()
            if num_unreadable:
                raise sqlite3.DatabaseError(f"{num_unreadable} messages are not JSON objects")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk when the block ends."""
        try:
            require_regular(self._path)
        except OSError as error:
            raise DamagedError(
                f"watch: {self._path} cannot be used: {error.strerror}; remove it"
            ) from error

        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_S)) as database:
                database.execute("PRAGMA synchronous = FULL")
                with database:
                    database.execute(_TABLE)
                    yield database

            self._root.note_made(OUTBOX_PLACE)
        except sqlite3.DatabaseError as error:
            problem = f"watch: {self._path} cannot be used ({error})"
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
            if code & 0xFF in _DAMAGE:
                raise DamagedError(
                    f"{problem}; restore or remove it, and remove watch_matches/: what it does not "
                    "know is announced again"
                ) from error

            raise DataError(
                f"{problem}; correct its permissions, free space, end what else uses it, and run "
                "this again"
            ) from error


def _is_known(database: sqlite3.Connection, concern: Concern, now_s: float) -> bool:
    """Whether a condition was found less than QUIET_S ago; if so, it was found now."""
    seen = "UPDATE messages SET seen_s = ? WHERE key = ? AND seen_s >= ?"
    updated = database.execute(seen, (now_s, concern.key, now_s - QUIET_S))
    return updated.rowcount > 0


def _message(concern: Concern, now_s: float) -> tuple[str, str]:
    """Id and body of the message about a concern."""
    parts: list[object] = [concern.key]
    if concern.lasting:
        parts.append(now_s)
    message_id = digest_of(parts)[:32]
    body = {
        "id": message_id,
        "event": concern.event,
        "text": concern.text,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return message_id, json.dumps(body, ensure_ascii=False)


@dataclass(frozen=True)
class Delivery:
    """What a call of `deliver_alerts` did."""

    delivered: int
    waiting: int
    """messages that are still to be delivered"""
    problem: str = ""
    """of the last one that failed"""


def training_failed(run: str, reason: str) -> Concern:
    """A training that failed. run: its key, which its retries have, too."""
    text = (
        f"training {run} failed: {reason}; run it again once the reason is gone, or `hapvr "
        f"models register {run}` if it was trained"
    )
    return Concern("training_failed", f"training/{run}", text)


def run_failed(job: str, run: str, reason: str) -> Concern:
    """A run of a job that is not retried. Of other jobs than trainings one a day: hundreds of
    shards may fail at once."""
    if job == "retrain":
        return training_failed(run, reason)
    key = f"run/{job}/{datetime.now(UTC).date()}"
    return Concern("run_failed", key, f"run {run} of {job} failed and is not retried: {reason}")


def tell(project: Project, *concerns: Concern) -> None:
    """Put what the webhook is to be told into the outbox, once for ever; nothing without a
    webhook."""
    if project.config.watch.webhook is not None:
        AlertOutbox(project.root).put_concerns(concerns)


def deliver_alerts(project: Project, *, limit_s: float = 60.0) -> Delivery:
    """Post what is due to `watch.webhook.url` and stop at the first that fails; the next call tries
    it after the others. Nothing is sent without a webhook.

    A message is done when the answer is 2xx, and this is on the disk before the next one goes out.
    A message that was under way when the process was killed goes out again with the same header
    `Idempotency-Key`, by which a receiver knows it. With `watch.webhook.secret` the header
    X-Hapvr-Signature-256 is `sha256=` and the HMAC of the body in hexadecimal. Two processes do not
    deliver at once.

    limit_s: after so long no other message is begun.
    """
    webhook = project.config.watch.webhook
    if webhook is None:
        return Delivery(0, 0)
    outbox = AlertOutbox(project.root)
    num_delivered = 0
    problem = ""
    began = time.monotonic()
    with project.root.lock("watch-outbox"):
        for name, body in outbox.due():
            if time.monotonic() - began > limit_s:
                break
            problem = _post(webhook, name, body.encode())
            outbox.tried(name, delivered=not problem)
            if problem:
                break
            num_delivered += 1

    return Delivery(num_delivered, outbox.counts()[1], problem)


def _post(webhook: WebhookConfig, name: str, body: bytes) -> str:
    """Why the message was not taken, without the address, which may hold a token; empty if it was.
    The whole exchange has TIMEOUT_S: what comes byte by byte, or is put off by `100 Continue`
    forever, is given up. It follows no redirect and uses no proxy."""
    parts = urlsplit(webhook.url)
    problems: list[str] = []  # one when the exchange has ended, empty where it went well
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Idempotency-Key": name}
    if webhook.secret is not None:
        signature = hmac.new(webhook.secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Hapvr-Signature-256"] = f"sha256={signature}"

    def exchange() -> None:
        try:
            with closing(connection):
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("POST", target, body=body, headers=headers)
                status = connection.getresponse().status

            problems.append("" if 200 <= status < 300 else f"{parts.hostname} answered {status}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            problems.append(f"{parts.hostname} cannot be reached ({error})")

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if problems:
        return problems[0]
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)

    return f"{parts.hostname} cannot be reached (no answer within {TIMEOUT_S:g} s)"
