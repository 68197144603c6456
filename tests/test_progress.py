"""How far long work is, in files and minutes."""

import pytest

from hapvr.commands import progress_bars
from hapvr.progress import FilesOfShards, clock_text, duration_text, seconds_left, shows_work


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.9, "0:00:05"), (3723, "1:02:03"), (-1, "0:00:00"), (float("inf"), "277777:46:40")],
    ids=["seconds", "hours", "before the start", "no time"],
)
def test_a_place_in_a_video_is_told_as_a_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_nothing_is_promised_before_anything_is_done() -> None:
    assert seconds_left(10, 0, 100) is None
    assert seconds_left(10, 25, 100) == 30


def test_without_a_terminal_work_says_a_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("hapvr.commands.progress_bars.time.monotonic", lambda: now_s)
    with progress_bars.long_progress("reading videos") as progress:
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


def test_without_a_terminal_a_long_file_is_named_each_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is counted while the only file is read."""
    now_s = 1000.0
    monkeypatch.setattr("hapvr.commands.progress_bars.time.monotonic", lambda: now_s)
    with progress_bars.long_progress("reading videos") as progress:
        doing = shows_work(progress)
        assert doing is not None
        doing("film.mp4: decoding, at 0:00:10")
        now_s += 61
        doing("film.mp4: decoding, at 0:04:00")
        doing("film.mp4: decoding, at 0:04:01")
        progress(0, 2)
        now_s += 61
        doing("film.mp4: decoding, at 0:08:00")

    assert capsys.readouterr().err.splitlines() == [
        "reading videos; film.mp4: decoding, at 0:04:00",
        "reading videos: 0 of 2; film.mp4: decoding, at 0:08:00",
    ]


@pytest.mark.parametrize("length", [10, 200], ids=["short", "long"])
def test_a_bar_says_how_far_a_file_of_any_name_is(length: int) -> None:
    text = f"{length * 'x'}.mp4: decoding, at 0:04:00"
    shortened = progress_bars.shortened(text)
    assert shortened.startswith("xxxxxxxxxx")
    assert shortened.endswith("decoding, at 0:04:00")
    assert len(shortened) <= progress_bars.MAX_DOING
