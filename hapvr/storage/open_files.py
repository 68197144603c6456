"""How many files this process may hold open."""

from __future__ import annotations

import os
import resource

from hapvr.errors import DataError

SPARE = 64
"""Descriptors for everything else: libraries, connections, pipes."""


def allow_open_files(count: int) -> None:
    """Let this process open as many files besides those that it has open; 1,024 in all is a usual limit.

    Raises DataError if the system does not allow that.
    """
    wanted = max(map(int, os.listdir("/dev/fd")), default=0) + count + SPARE
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return
    if most != resource.RLIM_INFINITY and most < wanted:
        raise DataError(
            f"storage: {count} files of shards have to be open at once, and the system allows {most}; raise that "
            f"(`ulimit -Hn {wanted}` as root, or LimitNOFILE of a service), or make larger shards (shard_videos)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
