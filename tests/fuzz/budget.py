"""How much the fuzz tests try: the same few examples each time, or FUZZ times as many others, as
`make fuzz` does."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

TIMES = int(os.environ.get("FUZZ", 0))


def fuzz(
    examples: int, **values: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `given`, with so many examples, or FUZZ times as many."""
    chosen = settings(
        max_examples=examples * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: chosen(given(**values)(test))


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some flipped, set, cut out, repeated or moved; sizes and offsets of boxes are
    four bytes of them."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        size = draw(st.sampled_from((1, 4, 100, len(changed) - at)))
        kind = draw(st.sampled_from(("flip", "set", "cut", "again", "zero")))
        if kind == "flip" and changed:
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            changed[at : at + 4] = draw(
                st.sampled_from((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\1"))
            )
        elif kind == "cut":
            del changed[at : at + size]
        elif kind == "again":
            changed[at:at] = changed[at : at + size]
        else:
            changed[at : at + size] = bytes(len(changed[at : at + size]))

    return bytes(changed)
