"""Lines of progress in a run's log."""

from __future__ import annotations

import re

from hapvr.progress import ProgressLines


def test_progress_lines_give_rates_and_the_time_left() -> None:
    """Videos and frames per second, and the time left until the last one; frames only where they are counted."""
    lines: list[str] = []
    tell = ProgressLines(lines.append, "decoding videos", every_s=0)
    tell(1, 4, 60)
    tell(4, 4, 200)
    tell(2, 0)
    assert re.fullmatch(r"decoding videos: 1/4, [\d.]+/s, [\d.]+ frames/s, \d+ s left", lines[0])
    assert re.fullmatch(r"decoding videos: 4/4, [\d.]+/s, [\d.]+ frames/s", lines[1])
    assert re.fullmatch(r"decoding videos: 2/\?, [\d.]+/s", lines[2])


def test_progress_lines_do_not_flood_a_log() -> None:
    """Between two lines passes a while, but the end is always told."""
    lines: list[str] = []
    tell = ProgressLines(lines.append, "videos", every_s=3600)
    for done in range(1, 101):
        tell(done, 100)
    assert len(lines) == 1
    assert lines[0].startswith("videos: 100/100")
