"""JSON documents as damage and attackers leave them: well formed with wrong values, or no document at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hapvr.errors import DataError

ABSENT = object()
VALUES = (ABSENT, None, "", "../../x", "a\0b", "x" * 9000, True, -1, 10**400, 1e308, math.nan, math.inf, [], {}, [[1]])
TEXTS = ("", "[" * 9000, '{"a":' * 9000, "[]", "null", "NaN", '"\udc80"', "9" * 9000)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    keys = value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ()
    for key in keys:
        yield from _places(value[key], (*at, key))


def hostile_documents(document: Any) -> Iterator[tuple[tuple[Any, ...], object, bytes]]:
    """(where, what stands there, the text): each value in turn is absent or another one; then texts that are no such document."""
    whole = json.dumps(document)
    for place in _places(json.loads(whole)):
        for value in VALUES:
            changed = json.loads(whole)
            node = changed
            for key in place[:-1]:
                node = node[key]
            if value is ABSENT:
                del node[place[-1]]
            else:
                node[place[-1]] = value
            if json.dumps(changed) != whole:
                yield place, value, json.dumps(changed).encode()
    for text in TEXTS:
        yield (), text, text.encode(errors="surrogateescape")


def believed(path: Path, read: Callable[[], object], document: Any) -> set[str]:
    """Read a file with each hostile document in it; returns the places of values that were taken all the same.

    Asserts that every other one ends in one sentence that names the file.
    """
    taken = set()
    for place, value, text in hostile_documents(document):
        path.write_bytes(text)
        try:
            read()
        except DataError as error:
            said = str(error)
            assert path.name in said, (place, value, said)
            assert "\n" not in said, (place, value, said)
            assert len(said) < 1500, (place, value, said)
        else:
            assert place, text[:50]
            taken.add(f"{'.'.join(map(str, place))}={'absent' if value is ABSENT else repr(value)[:9]}")
    path.write_text(json.dumps(document))
    return taken
