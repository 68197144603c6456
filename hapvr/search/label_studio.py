"""Pairs to be judged, as tasks of Label Studio: JSON to import there, whose export as CSV is what
`hapvr pairs import` reads."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hapvr.video.sources import text_of_path

Pair = tuple[str, str, str | None, float | None]
"""Ids, or the file of a query; the verdict of a search; the probability of a match, None if it is
not known."""

CHOICES = {"match": "match", "no match": "not a match"}
"""Verdict of a search -> the choice that a task proposes."""


def label_studio_tasks(
    pairs: Iterable[Pair], path_of: Callable[[str], Path | None]
) -> list[dict[str, Any]]:
    """A task for each pair of which both videos have a file. Label Studio serves these files if the
    root of its local files is /. A task proposes a verdict unless that is unsure."""
    tasks = []
    for first, second, verdict, probability in pairs:
        first_path = path_of(first)
        second_path = path_of(second)
        if first_path is None or second_path is None:
            continue
        data = {
            "first": first,
            "second": second,
            "first_video": _address_of(first_path),
            "second_video": _address_of(second_path),
        }
        task: dict[str, Any] = {"data": data}
        choice = CHOICES.get(verdict or "")
        if choice is not None:
            task["predictions"] = [_prediction(choice, probability)]
        tasks.append(task)

    return tasks


def _address_of(path: Path) -> str:
    """Where Label Studio serves a local file."""
    return f"/data/local-files/?d={quote(text_of_path(path)[1:])}"


def _prediction(choice: str, probability: float | None) -> dict[str, Any]:
    """The choice that a task proposes."""
    result = {
        "from_name": "verdict",
        "to_name": "second",
        "type": "choices",
        "value": {"choices": [choice]},
    }
    return {"score": probability, "result": [result]}
