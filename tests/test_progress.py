"""How far long work is, in files and minutes."""

import pytest

from hapvr.commands import terminal
from hapvr.progress import FilesOfShards, duration_text, seconds_left


def test_the_progress_of_shards_counts_files_of_all() -> None:
    """Whatever a shard counts itself, here pictures."""
    told: list[tuple[int, int]] = []
    overall = FilesOfShards(lambda done, total: told.append((done, total)), {"a": 4, "b": 2})
    overall.of("a")(50, 100)
    overall.finish("a")
    overall.of("b")(1, 2)
    overall.finish("b")
    assert told == [(2, 6), (4, 6), (5, 6), (6, 6)]


def test_a_step_without_shards_tells_its_own_progress() -> None:
    told: list[tuple[int, int]] = []
    overall = FilesOfShards(lambda done, total: told.append((done, total)), {"": 0})
    overall.of("")(3, 7)
    overall.finish("")
    assert told == [(3, 7)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "less than a minute"), (125, "2 min"), (9000, "2.5 h")],
    ids=["seconds", "minutes", "hours"],
)
def test_time_left_is_told_as_people_say_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_nothing_is_promised_before_anything_is_done() -> None:
    assert seconds_left(10, 0, 100) is None
    assert seconds_left(10, 25, 100) == 30


def test_without_a_terminal_work_says_a_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("hapvr.commands.terminal.time.monotonic", lambda: now_s)
    with terminal.long_progress("reading videos") as progress:
        progress(1, 900)
        now_s += 61
        progress(100, 900)
        progress(101, 900)
        now_s += 61
        progress(200, 900)
    assert capsys.readouterr().err.splitlines() == [
        "reading videos: 100 of 900, 8 min left",
        "reading videos: 200 of 900, 7 min left",
    ]
