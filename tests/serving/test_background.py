"""Work in the background tells how far it is."""

from collections.abc import Iterator
from threading import Event

import pytest

from hapvr.progress import shows_work
from hapvr.serving.background import Work

LIMIT_S = 20


@pytest.fixture
def work() -> Iterator[Work]:
    """Nothing yet."""
    work = Work("test")
    yield work
    work.close()


def test_the_state_names_the_file_that_is_being_read(work: Work) -> None:
    """With how far it is, as the terminal does."""
    read = Event()
    seen = Event()

    def decode(work: Work) -> None:
        with work.bar("reading videos") as progress:
            doing = shows_work(progress)
            assert doing is not None
            doing("a.mp4: decoding, at 0:00:12")
            progress(1, 3)
            read.set()
            seen.wait(LIMIT_S)

    work.start(decode)
    assert read.wait(LIMIT_S)
    state = work.state.model_copy()
    seen.set()
    assert state.file == "a.mp4: decoding, at 0:00:12"
    assert state.done == 1
    assert state.total == 3


def test_the_next_part_names_no_file_of_the_last_one(work: Work) -> None:
    begun = Event()
    seen = Event()

    def update(work: Work) -> None:
        with work.bar("reading videos") as progress:
            doing = shows_work(progress)
            assert doing is not None
            doing("a.mp4: decoding")

        with work.bar("grouping copies"):
            begun.set()
            seen.wait(LIMIT_S)

    work.start(update)
    assert begun.wait(LIMIT_S)
    state = work.state.model_copy()
    seen.set()
    assert state.doing == "grouping copies"
    assert state.file == ""
