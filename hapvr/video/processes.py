"""Fresh worker processes that do not run the program's main module again.

The standard library's spawn imports the parent's main module into every child: a plain script that scores two videos
fails if it has no `__main__` guard, and a program that loads networks loads them in each decoder. The functions that
decode live in this package, so nothing from the main module is needed.
"""

from __future__ import annotations

import contextlib
import io
import os
from multiprocessing import context, reduction, resource_tracker, spawn, util
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from typing import Any, cast

_MAIN_KEYS = ("init_main_from_name", "init_main_from_path")


class _CleanPopen(Popen):
    """Starts a fresh interpreter, whose preparation leaves out the main module. Internals of CPython 3.11 to 3.14."""

    _fds: list[int]

    def _launch(self, process_obj: BaseProcess) -> None:
        tracker_fd = cast(int, resource_tracker.getfd())
        preparation = spawn.get_preparation_data(process_obj.name)
        message = self._pickled([{key: preparation[key] for key in preparation if key not in _MAIN_KEYS}, process_obj])
        with contextlib.ExitStack() as child_ends:
            sentinel, alive = os.pipe()
            child_ends.callback(os.close, alive)
            orders, ours = os.pipe()
            child_ends.callback(os.close, orders)
            self.finalizer = util.Finalize(self, _close, (sentinel, ours))
            command = spawn.get_command_line(tracker_fd=tracker_fd, pipe_handle=orders)
            self.pid = util.spawnv_passfds(
                os.fsencode(spawn.get_executable()), command, [*self._fds, tracker_fd, orders, alive]
            )
            self.sentinel = sentinel
        with open(ours, "wb", closefd=False) as pipe:
            pipe.write(message)

    def _pickled(self, parts: list[Any]) -> bytes:
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            for part in parts:
                reduction.dump(part, buffer)
        finally:
            context.set_spawning_popen(None)
        return buffer.getvalue()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class CleanProcess(context.SpawnProcess):
    """A process of CleanContext."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _CleanPopen(process_obj)


class CleanContext(context.SpawnContext):
    """A multiprocessing context whose processes start from nothing but the imports that their functions need."""

    Process = CleanProcess
