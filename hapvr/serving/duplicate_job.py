"""Looks through the collection for duplicates in the background, for people who have no Dagster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hapvr.errors import HapvrError
from hapvr.scorer.access import Deadline
from hapvr.serving.answers import DuplicateJobState
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import without_paths
from hapvr.steps.duplicates import make_duplicate_groups, make_duplicate_pairs, outdated_pairs

_LOG = logging.getLogger(__name__)


class DuplicateJob:
    """Does what `hapvr duplicates` does, once at a time. Any thread may ask."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = Deadline(None)
        self.state = DuplicateJobState(running=False, done=0, total=0, error="")

    def start(self, index: OpenIndex, *, ended: Callable[[], object]) -> DuplicateJobState:
        """Begin with the shards that were not looked through yet, unless that is under way. ended: called at the end."""
        with self._guard:
            if not self.state.running:
                self.state = DuplicateJobState(running=True, done=0, total=0, error="")
                self._thread = threading.Thread(target=self._run, args=(index, self.state, ended), name="duplicates")
                self._thread.start()
            return self.state

    def close(self) -> None:
        """End it and wait for that; shards that are finished stay."""
        self._end.cancel()
        if self._thread is not None:
            self._thread.join()

    def _run(self, index: OpenIndex, state: DuplicateJobState, ended: Callable[[], object]) -> None:
        try:
            counts = {key: len(index.searcher.collection.video_ids(key)) for key in outdated_pairs(index.project)}
            state.total = sum(counts.values())
            for key, count in counts.items():
                before = state.done

                def progress(done: int, _total: int, _frames: int = 0, /, *, before: int = before) -> None:
                    self._end.check()
                    state.done = before + done

                make_duplicate_pairs(index.project, index.searcher, key, progress=progress)
                state.done = before + count
            make_duplicate_groups(index.project, index.searcher)
        except HapvrError as error:
            state.error = without_paths(str(error))
        except Exception:
            _LOG.exception("duplicates: unforeseen error")
            state.error = "the search for duplicates failed; the log of the service says where. Please report it"
        finally:
            ended()
            state.running = False
