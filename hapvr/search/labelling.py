"""Pairs of videos as tasks of Label Studio: JSON to import there. Its export as CSV is what `hapvr pairs import` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hapvr.video.sources import text_of_path

CHOICES = {"match": "match", "no match": "not a match"}
"""What a task proposes, by verdict; nothing where that is unsure."""

Pair = tuple[str, str, str | None, float | None]
"""Ids, or the file of a query; verdict; probability of a match, None where nobody knows."""


def label_studio_tasks(pairs: Iterable[Pair], path_of: Callable[[str], Path | None]) -> list[dict[str, Any]]:
    """A task for each pair of which both videos have a file, as it serves them with / as the root of local files."""
    tasks = []
    for first, second, verdict, probability in pairs:
        paths = {"first_video": path_of(first), "second_video": path_of(second)}
        videos = {name: f"/data/local-files/?d={quote(text_of_path(path)[1:])}" for name, path in paths.items() if path}
        choice = {"from_name": "verdict", "to_name": "second", "type": "choices"}
        said = [choice | {"value": {"choices": [CHOICES[verdict]]}}] if verdict in CHOICES else []
        if len(videos) == len(paths):
            task = {"data": {"first": first, "second": second, **videos}}
            tasks.append(task | {"predictions": [{"score": probability, "result": said}]} if said else task)
    return tasks
