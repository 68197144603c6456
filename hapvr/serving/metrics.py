"""What Prometheus reads at GET /metrics."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from hapvr.serving.collection import Collection
from hapvr.serving.jobs import Job, SearchJobs
from hapvr.serving.refusals import describe
from hapvr.serving.search_processes import SearchProcesses
from hapvr.video.pool import killed_workers

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics(Collector):
    """Counts searches and refusals; the rest is asked when it is read."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, jobs: SearchJobs, collection: Collection) -> None:
        self._jobs = jobs
        self._collection = collection
        self.processes: SearchProcesses | None = None
        """Where searches are answered; None: in this process."""
        self._registry = registry = CollectorRegistry()
        self._searches = Counter(
            "hapvr_searches",
            "Searches that have ended, by the verdict of the best match, or by the code "
            "of what went wrong",
            ["result"],
            registry=registry,
        )
        self._seconds = Histogram(
            "hapvr_search_seconds",
            "Seconds of a search; read: decoding and features; total: with waiting",
            ["part"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.refusals = Counter(
            "hapvr_refusals", "Requests that got an error, by code", ["code"], registry=registry
        )
        registry.register(self)
        ProcessCollector(registry=registry)

    def timed(self, part: str) -> AbstractContextManager[object]:
        """Measures a block as a part of a search."""
        return self._seconds.labels(part).time()

    def took(self, part: str, seconds: float) -> None:
        """Count a part of a search that another process has measured."""
        self._seconds.labels(part).observe(seconds)

    def ended(self, job: Job) -> None:
        """Count a search that was started and has ended."""
        self._searches.labels(_result_of(job)).inc()

    def text(self) -> bytes:
        """All values, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The state of this moment."""
        yield GaugeMetricFamily(
            "hapvr_busy", "Searches that run or wait, and uploads", value=self._jobs.busy
        )
        killed = CounterMetricFamily(
            "hapvr_killed_workers", "Decoders that hung or died", labels=["reason"]
        )
        for reason, count in killed_workers.copy().items():
            killed.add_metric([reason], count)
        yield killed
        if self.processes is not None:
            yield GaugeMetricFamily(
                "hapvr_search_processes",
                "Processes that search",
                value=len(self.processes.pids),
            )
            yield CounterMetricFamily(
                "hapvr_replaced_search_processes",
                "Processes that were started in the place of one that had ended",
                value=self.processes.num_replaced,
            )

        index = self._collection.opened
        if index is not None:
            yield GaugeMetricFamily(
                "hapvr_index_age_seconds",
                "Seconds since the index that answers was changed",
                value=time.time() - index.changed_s,
            )
            yield GaugeMetricFamily(
                "hapvr_index_videos", "Videos of the index", value=index.searcher.num_videos
            )


def _result_of(job: Job) -> str:
    """The code of what went wrong, or the verdict of the best match."""
    if job.error is not None:
        return describe(job.error)[1]["code"]
    matches = job.task.result().matches
    if not matches:
        return "nothing"
    return matches[0].verdict or "uncalibrated"
