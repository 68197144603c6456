"""More searches than the service has places for."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serving.raw_requests import sending, soon
from tests.serving.served import Answer, Client, serving
from tests.steps.search_projects import copied


@pytest.fixture(scope="module")
def crowded(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service with few places, all of whose searches are jobs, one at a time. What it is told
    holds for all services of the process, so nothing else is tested in this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
        patch.setattr("hapvr.serving.jobs.MAX_WAITING", 7)
        patch.setattr("hapvr.serving.jobs.SEARCHES_AT_ONCE", 1)
        with serving(copied(collection, tmp_path_factory.mktemp("crowded"))) as client:
            yield client


def ask_long(client: Client, sender: str = "127.0.0.1") -> Answer:
    """Ask for a search, and do not wait for it."""
    return client.ask("POST", "/search", body={"id": "in/long.mp4"}, sender=sender)


def ask_at_once(client: Client) -> tuple[list[Answer], list[Answer]]:
    """Of 16 searches at the same time those that are taken, and those that are refused."""
    assert soon(lambda: client.get("/health").json["busy"] == 0)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask_long(client), range(16)))
    taken = [answer for answer in answers if answer.status in (200, 202)]
    refused = [answer for answer in answers if answer.status == 503]
    assert len(taken) + len(refused) == 16
    return taken, refused


def test_more_than_can_wait_are_refused(crowded: Client) -> None:
    """With a time to come back; what was taken is answered."""
    taken, refused = ask_at_once(crowded)
    assert 4 <= len(taken) < 16
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert crowded.ended(taken[0]).json["status"] == "done"


def test_a_job_that_is_canceled_gives_its_place_back_once(crowded: Client) -> None:
    """However often it is canceled: as many as before are taken then, and others refused."""
    for _ in range(3):
        taken, refused = ask_at_once(crowded)
        assert 4 <= len(taken) < 16
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        for answer in taken:
            for _ in range(5):
                assert crowded.ask("DELETE", f"/jobs/{answer.json['job']}").status == 200
            assert crowded.ended(answer).json["status"] in ("done", "failed")


def test_one_address_takes_half_of_the_places(crowded: Client) -> None:
    """The others are those of others."""
    assert soon(lambda: crowded.get("/health").json["busy"] == 0)
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(sending(crowded, "content-length: 100000"))
        assert soon(lambda: crowded.get("/health").json["busy"] == 4)
        assert ask_long(crowded).status == 503
        others = ask_long(crowded, sender="127.0.0.2")
        assert crowded.ended(others).json["status"] == "done"
