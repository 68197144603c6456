"""Limits and permissions from the environment and from a request; turns at the compute lock, and
deadlines."""

import os
import time
from pathlib import Path

import pytest

from hapvr.errors import ConfigError, VideoError
from hapvr.scorer.access import (
    Access,
    ComputeLock,
    Deadline,
    access_from_environment,
    limits_from_environment,
)
from hapvr.settings import ServingConfig


def test_environment_replaces_stored_limits() -> None:
    """Variables that are set win, those that are empty do not count, the rest is the model's."""
    stored = ServingConfig(max_pairs=5, max_frames=60)
    given = {"HAPVR_MAX_PAIRS": "7", "HAPVR_REQUEST_TIMEOUT_S": "2.5", "HAPVR_MAX_BYTES": ""}
    limits = limits_from_environment(stored, given)
    assert limits.max_pairs == 7
    assert limits.max_frames == 60
    assert limits.request_timeout_s == 2.5
    assert limits.max_bytes == stored.max_bytes


def test_a_library_reads_any_path(tmp_path: Path) -> None:
    access = access_from_environment({})
    assert access.local_path(str(tmp_path / "x.mp4")) == tmp_path / "x.mp4"


def test_a_library_reads_no_url() -> None:
    with pytest.raises(VideoError, match="HAPVR_ALLOWED_HOSTS"):
        access_from_environment({}).check_url("https://example.org/x.mp4")


@pytest.fixture
def two_of_each(tmp_path: Path) -> Access:
    """Two roots and two hosts are allowed; a third folder has a name that begins like a root."""
    for name in ("one", "two", "one-more"):
        (tmp_path / name).mkdir()
    environ = {
        "HAPVR_ALLOWED_ROOTS": os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]),
        "HAPVR_ALLOWED_HOSTS": "Example.org, cdn.example.org",
    }
    return access_from_environment(environ)


def test_each_root_that_is_listed_may_be_read(two_of_each: Access, tmp_path: Path) -> None:
    two_of_each.local_path(str(tmp_path / "two" / "x.mp4"))


def test_a_folder_beside_the_roots_may_not_be_read(two_of_each: Access, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="outside"):
        two_of_each.local_path(str(tmp_path / "one-more" / "x.mp4"))


def test_a_host_that_is_listed_may_be_asked(two_of_each: Access) -> None:
    """In any case of its letters."""
    two_of_each.check_url("https://EXAMPLE.org/x.mp4")


def test_a_host_whose_name_goes_on_may_not_be_asked(two_of_each: Access) -> None:
    with pytest.raises(VideoError, match=r"example\.org\.evil"):
        two_of_each.check_url("https://example.org.evil/x.mp4")


def test_an_empty_list_of_roots_allows_nothing(tmp_path: Path) -> None:
    access = access_from_environment({"HAPVR_ALLOWED_ROOTS": ""})
    with pytest.raises(VideoError, match="outside"):
        access.local_path(str(tmp_path / "x.mp4"))


def test_a_root_that_is_not_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        access_from_environment({"HAPVR_ALLOWED_ROOTS": str(tmp_path / "three")})


def test_waiting_for_a_turn_ends_at_the_deadline() -> None:
    """The error says so; the lock is free for others afterwards, but not for those whose deadline
    has passed."""
    lock = ComputeLock()
    with (
        lock.hold(Deadline(None)),
        pytest.raises(VideoError, match=r"not done after 0\.05 s") as caught,
        lock.hold(Deadline(0.05)),
    ):
        pytest.fail("two threads compute at once")

    assert caught.value.reason == "timeout"
    passed = Deadline(0.001)
    time.sleep(0.01)
    with lock.hold(Deadline(1)):
        pass
    with pytest.raises(VideoError, match="not done"), lock.hold(passed):
        pytest.fail("the deadline has passed")
