"""The tasks of each kind of benchmark: which number is measured, and on which pairs."""

from dataclasses import dataclass, replace
from typing import Literal

Metric = Literal["mAP", "micro-AP"]
ApKind = Literal["step", "trapezoid", "tie_grouped"]
Pool = Literal["database", "labelled", "labelled_and_unlabelled"]

CLIPS = "clips"
PARTS_TASK = "parts"

POSITIVE = "positive"
PART = "part"
COPY = "copy"

FIVR_LABELS = {"DSV": ("ND", "DS"), "CSV": ("ND", "DS", "CS"), "ISV": ("ND", "DS", "CS", "IS")}
"""The labels that are relevant in FIVR's tasks, by the stem of their names."""

FIVR_METRICS: dict[str, Metric] = {"R": "mAP", "D": "micro-AP"}
"""Retrieval and detection, by the letter after the stem."""

FIVR_EXCLUSIONS = {"": None, "_h": "easy_duplicates"}
"""Normal and hard tasks, by the endings of their names."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One number of a benchmark: which labels are relevant, in which pool, by which average
    precision."""

    name: str
    metric: Metric
    positives: frozenset[str]
    average_precision: ApKind = "step"
    pool: Pool = "database"
    """"database" ranks every database video; "labelled" only the videos that carry a label of this
    query; "labelled_and_unlabelled" those and the videos that carry no label of any query (SVD)."""
    exclusion: str | None = None
    """Name of the exclusion list whose videos leave ranking and ground truth; None for none."""
    ignored: frozenset[str] = frozenset()
    """Labels of true matches that the task does not ask for; pairs with such a label leave the
    ranking."""
    query_stays: bool = False
    """Whether a query found in its own ranking stays there and may count as a hit
    (CC_WEB_VIDEO)."""
    official_missing_positive: Literal["leaves", "misses"] = "leaves"
    """Under the official policy: whether it leaves the ground truth, or costs recall."""
    official_empty_query: Literal["skipped", "zero"] = "skipped"
    """Under the official policy: what a query left without positives scores. One without any score
    is skipped there."""


def _fivr_tasks() -> tuple[Task, ...]:
    """Normal ones before hard ones, retrieval before detection, strict labels before wider ones."""
    tasks = []
    for suffix, exclusion in FIVR_EXCLUSIONS.items():
        for letter, metric in FIVR_METRICS.items():
            for stem, labels in FIVR_LABELS.items():
                task = Task(
                    name=f"{stem}{letter}{suffix}",
                    metric=metric,
                    positives=frozenset(labels),
                    exclusion=exclusion,
                )
                tasks.append(task)

    return tuple(tasks)


def _evve_tasks() -> tuple[Task, ...]:
    retrieval = Task(
        name="EVVE_mAP",
        metric="mAP",
        positives=frozenset({POSITIVE}),
        average_precision="trapezoid",
        exclusion="ambiguous",
        official_empty_query="zero",
    )
    detection = replace(retrieval, name="EVVE_uAP", metric="micro-AP", average_precision="step")
    return retrieval, detection


def _svd_tasks() -> tuple[Task, ...]:
    retrieval = Task(
        name="mAP",
        metric="mAP",
        positives=frozenset({POSITIVE}),
        average_precision="tie_grouped",
        pool="labelled_and_unlabelled",
        official_empty_query="zero",
    )
    detection = replace(retrieval, name="uAP", metric="micro-AP", average_precision="step")
    return retrieval, detection


def _vcdb_tasks() -> tuple[Task, ...]:
    positives = frozenset({COPY})
    return (
        Task(name="VCDB_mAP", metric="mAP", positives=positives),
        Task(name="VCDB_uAP", metric="micro-AP", positives=positives),
    )


def _cc_web_video_tasks() -> tuple[Task, ...]:
    whole = Task(
        name="mAP_star",
        metric="mAP",
        positives=frozenset("ESLMV"),
        query_stays=True,
        official_missing_positive="misses",
    )
    return (
        replace(whole, name="mAP", pool="labelled"),
        whole,
        replace(whole, name="mAP_c", pool="labelled", exclusion="cleaned"),
        replace(whole, name="mAP_c_star", exclusion="cleaned"),
    )


def _clips_tasks() -> tuple[Task, ...]:
    """FIVR's tasks, in which a part is not an answer, and one in which only parts are."""
    tasks = [replace(task, ignored=frozenset({PART})) for task in _fivr_tasks()]
    parts = Task(
        name=PARTS_TASK,
        metric="micro-AP",
        positives=frozenset({PART}),
        ignored=frozenset(FIVR_LABELS["ISV"]),
    )
    return (*tasks, parts)


TASKS: dict[str, tuple[Task, ...]] = {
    "fivr": _fivr_tasks(),
    "evve": _evve_tasks(),
    "svd": _svd_tasks(),
    "vcdb": _vcdb_tasks(),
    "cc_web_video": _cc_web_video_tasks(),
    CLIPS: _clips_tasks(),
}
"""All tasks of each kind of benchmark."""


def measurable_tasks(
    kind: str, *, labels: frozenset[str], exclusions: frozenset[str]
) -> tuple[Task, ...]:
    """The tasks of a kind that these labels and lists of exclusions can measure, each measure
    once."""
    tasks: list[Task] = []
    seen: set[Task] = set()
    for task in TASKS[kind]:
        # Without a list of its exclusion a task ranks everything.
        exclusion = task.exclusion if task.exclusion in exclusions else None
        measured = replace(task, name="", exclusion=exclusion, positives=task.positives & labels)
        if measured.positives and measured not in seen:
            tasks.append(replace(task, exclusion=exclusion))
        seen.add(measured)

    return tuple(tasks)
