"""`hapvr serve --workers`: searches in processes of their own, behind one service."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from hapvr.search.kept_answers import kept_jobs
from hapvr.steps.project import Project
from tests.scorer.bundles import write_scenes
from tests.serving.served import Answer, Client, serving
from tests.serving.test_operations import values
from tests.steps.search_projects import LONG, copied

pytestmark = pytest.mark.slow

BEST = "in/long.mp4"
SHORT = "in/short.mp4"
WORKERS = 2


@pytest.fixture(scope="module")
def shared(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service whose searches are answered by two processes."""
    with serving(copied(collection, tmp_path_factory.mktemp("shared")), workers=WORKERS) as client:
        assert soon(lambda: client.get("/ready").status == 200)
        yield client


def soon(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within two minutes: processes that start load networks."""
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def pids(client: Client) -> set[int]:
    assert client.service.processes is not None
    return set(client.service.processes.pids)


def at_once(client: Client, count: int, **asked: Any) -> list[Answer]:
    """The same search by several clients at the same time."""

    def ask(_: int) -> Answer:
        return client.search(**asked)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not anybody has asked how. Its files are open until
    the last of its threads has ended, which may be later than the first."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() == 1)
    except psutil.NoSuchProcess:
        return True


def content_of(answer: Answer) -> dict[str, Any]:
    """What an answer says, without which search it was for and when."""
    of_search = ("job", "since")
    return {name: value for name, value in answer.json.items() if name not in of_search}


@pytest.mark.parametrize(
    "asked",
    [
        {"id": SHORT},
        {"id": BEST, "top": 3, "segments": False},
        {"id": BEST, "from": 5, "to": 20, "incidents": True},
        {"id": "in/absent.mp4"},
        {"id": SHORT, "from": 500},
        {"path": "/absent/folder/x.mp4"},
        {"url": "http://127.0.0.1:9/x.mp4"},
    ],
    ids=str,
)
def test_each_process_answers_as_the_service_alone(
    client: Client, shared: Client, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """To every digit; and an error has the same status, code and sentence."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 120)
    alone = client.search(**asked)
    answers = at_once(shared, 2 * WORKERS, **asked)
    assert {answer.status for answer in answers} == {alone.status}
    assert [content_of(answer) for answer in answers] == [content_of(alone)] * len(answers)


def test_a_file_that_is_sent_is_answered_as_by_the_service_alone(
    client: Client, shared: Client, tmp_path: Path
) -> None:
    clip = write_scenes(tmp_path / "my clip.mp4", list(LONG[25:31]))
    alone = client.upload(clip, top=2)
    assert content_of(shared.upload(clip, top=2)) == content_of(alone)
    assert shared.uploads == []


def test_a_damaged_file_is_named_as_its_sender_does(shared: Client, tmp_path: Path) -> None:
    damaged = tmp_path / "my damaged clip.mp4"
    damaged.write_bytes(bytes(1000))
    failed = shared.upload(damaged)
    assert failed.json["error"].startswith("video: my damaged clip.mp4")
    assert failed.json["code"] == "not_video"


def test_a_mark_counts_in_every_process(shared: Client) -> None:
    """From the moment it is made until it is taken back."""
    mark = {"query": SHORT, "reference": BEST, "mark": "match"}
    assert shared.ask("PATCH", "/pairs", body=mark).status == 200
    for answer in at_once(shared, 2 * WORKERS, id=SHORT, top=1):
        marks = {match["reference"]: match["mark"] for match in answer.json["answer"]["matches"]}
        assert marks[BEST] == "match"

    assert shared.ask("PATCH", "/pairs", body=mark | {"mark": None}).status == 200
    for answer in at_once(shared, 2 * WORKERS, id=SHORT, top=1):
        assert not any(match["mark"] for match in answer.json["answer"]["matches"])


def test_a_job_is_followed_to_its_end(
    shared: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all that is asked about it is answered, whichever process has searched."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
    clip = write_scenes(tmp_path / "clip.mp4", list(LONG[25:31]))
    for _ in range(WORKERS):
        with clip.open("rb") as stream:
            kind = {"content-type": "application/octet-stream"}
            begun = shared.ask("POST", "/search", body=stream, headers=kind, name="clip.mp4")

        assert begun.status == 202
        done = shared.ended(begun)
        job = done.json["job"]
        assert done.json["answer"]["matches"][0]["reference"] == BEST
        asked = {"job": job, "reference": BEST}
        assert shared.get("/pairs/matrix", **asked).json["values"]
        assert shared.get(f"/jobs/{job}/explanation", reference=BEST).json["lines"]
        assert shared.get(f"/jobs/{job}/table").body.startswith(b"query_id,")
        assert shared.get(f"/query-pictures/{job}", second=2).headers["content-type"]
        assert job in kept_jobs(shared.service.project.root)


def test_a_search_that_runs_can_be_canceled(
    shared: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process goes on with other searches."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
    before = pids(shared)
    clip = write_scenes(tmp_path / "long clip.mp4", list(range(900, 960)))
    begun = shared.ask("POST", "/search", body={"path": str(clip)})
    running = f"/jobs/{begun.json['job']}"
    assert soon(lambda: shared.get(running).json["status"] == "running")
    shared.ask("DELETE", running)
    ended = shared.ended(begun)
    assert (ended.json["status"], ended.json["code"]) == ("failed", "canceled")
    assert {answer.status for answer in at_once(shared, WORKERS, id=SHORT)} <= {200, 202}
    assert pids(shared) == before


def test_metrics_are_those_of_all_processes(shared: Client) -> None:
    """Searches by verdict, and seconds by part."""
    keys = [("hapvr_search_seconds_count", part) for part in ("read", "find", "total")]
    before = values(shared)
    at_once(shared, 2 * WORKERS, id=SHORT)
    after = values(shared)
    assert [after[key] - before.get(key, 0) for key in keys] == [2 * WORKERS] * len(keys)
    assert after["hapvr_search_processes",] == WORKERS


def test_a_killed_process_is_replaced(collection: Path, tmp_path: Path) -> None:
    """Searches that it was answering are answered by another one."""
    with serving(copied(collection, tmp_path), workers=WORKERS) as client:
        assert client.search(id=SHORT).status == 200
        before = pids(client)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(client.search, id=SHORT) for _ in range(12)]
            asked[2].result()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            assert [each.result().status for each in asked] == [200] * len(asked)

        assert soon(lambda: len(pids(client)) == WORKERS)
        assert not pids(client) & before
        assert values(client)["hapvr_replaced_search_processes_total",] == WORKERS
        assert client.search(id=SHORT).status == 200


@pytest.fixture
def command(project: Project) -> Iterator[subprocess.Popen[str]]:
    """`hapvr serve --workers 2`."""
    run = "from hapvr.cli import main; main()"
    arguments = ["serve", "--config", str(project.folder / "config.yaml")]
    with subprocess.Popen(
        [sys.executable, "-c", run, *arguments, "--port", "0", "--workers", "2", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def processes_of(command: subprocess.Popen[str]) -> list[int]:
    """All that a service has started, once it has its searching processes."""
    assert command.stdout is not None
    assert json.loads(command.stdout.readline())["address"]
    children = psutil.Process(command.pid).children
    assert soon(lambda: len(children()) > WORKERS)
    return [child.pid for child in children(recursive=True)]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=str)
def test_no_process_outlives_the_service(
    command: subprocess.Popen[str], ending: signal.Signals
) -> None:
    """However it ends."""
    started = processes_of(command)
    command.send_signal(ending)
    command.wait(60)
    assert soon(lambda: all(map(is_gone, started)))


def test_a_second_interrupt_ends_the_service_and_its_processes(
    command: subprocess.Popen[str],
) -> None:
    """With nothing left that waits for the end of a process."""
    started = processes_of(command)
    for _ in range(2):
        command.send_signal(signal.SIGINT)
        time.sleep(0.05)  # signals that come together are one

    command.wait(120)  # the index is being opened, and Python waits for that
    assert soon(lambda: all(map(is_gone, started)))
