"""Limits and permissions from the environment and from a request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hapvr.errors import ConfigError, VideoError
from hapvr.scorer.access import access_from_environment, limits_from_environment
from hapvr.settings import ServingConfig


def test_environment_replaces_stored_limits() -> None:
    """Variables that are set win, those that are empty do not count, the rest is the model's."""
    stored = ServingConfig(max_pairs=5, max_frames=60)
    limits = limits_from_environment(
        stored, {"HAPVR_MAX_PAIRS": "7", "HAPVR_REQUEST_TIMEOUT_S": "2.5", "HAPVR_MAX_BYTES": ""}
    )
    assert (limits.max_pairs, limits.max_frames, limits.request_timeout_s) == (7, 60, 2.5)
    assert limits.max_bytes == stored.max_bytes


def test_access_without_variables_is_all_files_and_no_hosts(tmp_path: Path) -> None:
    """As a library: any path, no URL."""
    access = access_from_environment({})
    assert access.local_path(str(tmp_path / "x.mp4")) == tmp_path / "x.mp4"
    with pytest.raises(VideoError, match="HAPVR_ALLOWED_HOSTS"):
        access.check_url("https://example.org/x.mp4")


def test_access_by_variables(tmp_path: Path) -> None:
    """Two roots, two hosts in any case; an empty list of roots allows nothing; a root that is no folder is an error."""
    for name in ("one", "two", "one-more"):
        (tmp_path / name).mkdir()
    environ = {
        "HAPVR_ALLOWED_ROOTS": os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]),
        "HAPVR_ALLOWED_HOSTS": "Example.org, cdn.example.org",
    }
    access = access_from_environment(environ)
    access.local_path(str(tmp_path / "two" / "x.mp4"))
    access.check_url("https://EXAMPLE.org/x.mp4")
    with pytest.raises(VideoError, match="outside"):
        access.local_path(str(tmp_path / "one-more" / "x.mp4"))
    with pytest.raises(VideoError, match=r"example\.org\.evil"):
        access.check_url("https://example.org.evil/x.mp4")
    with pytest.raises(VideoError, match="outside"):
        access_from_environment({"HAPVR_ALLOWED_ROOTS": ""}).local_path(str(tmp_path / "x.mp4"))
    with pytest.raises(ConfigError, match="not a folder"):
        access_from_environment({"HAPVR_ALLOWED_ROOTS": str(tmp_path / "three")})
