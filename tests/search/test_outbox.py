"""Messages that wait, in a file that may be another program's or hold values that are no messages."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hapvr.errors import DamagedError
from hapvr.stages.alerts import AlertOutbox
from hapvr.storage.filesystem import DataRoot


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE messages SET attempts = 'x'",
        "UPDATE messages SET attempts = -1",
        "UPDATE messages SET id = 'a' || char(10) || 'Host: x'",
        "UPDATE messages SET id = x'ff'",
        "UPDATE messages SET body = CAST(x'ff' AS TEXT)",
        "ALTER TABLE messages RENAME COLUMN body TO text",
        "DROP TABLE messages; CREATE VIEW messages AS SELECT 1 AS id",
        "DROP TABLE messages; CREATE TABLE messages (id, text)",
    ],
)
def test_what_are_no_messages_is_named(tmp_path: Path, change: str) -> None:
    """An id becomes a header of a request, so it holds no line break."""
    outbox = AlertOutbox(DataRoot(tmp_path))
    outbox.put({"a": "{}"})
    assert [message.id for message in outbox.due(0)] == ["a"]
    with sqlite3.connect(tmp_path / "watch" / "outbox.db") as database:
        database.executescript(change)
    with pytest.raises(DamagedError, match=r"outbox\.db cannot be used .* restore it from a copy"):
        outbox.due(0)
