"""FIVR-200K and FIVR-5K (Kordopatis-Zilos et al., TMM 2019): fine-grained incident video retrieval."""

from __future__ import annotations

from collections.abc import Collection

from hapvr.benchmark.definition import Task

RELEVANT_LABELS = {"DSV": ("ND", "DS"), "CSV": ("ND", "DS", "CS"), "ISV": ("ND", "DS", "CS", "IS")}
HARD = "easy_duplicates"


def fivr_tasks(labels: Collection[str], *, exclusions: Collection[str] = ()) -> tuple[Task, ...]:
    """Retrieval (mAP: DSVR, CSVR, ISVR) and detection (micro-AP: DSVD, CSVD, ISVD) tasks for which there are labels.

    labels: the labels that occur. A task is left out where the labels it adds to the one before do not occur.
    exclusions: with HARD among them every task has a version `_h` without the easy duplicates.
    """
    levels = []
    known: frozenset[str] = frozenset()
    for stem, positives in RELEVANT_LABELS.items():
        added = set(positives) - known
        known |= set(positives)
        if added & set(labels):
            levels.append((stem, frozenset(positives)))
    tasks = []
    for suffix, exclusion in (("", None), ("_h", HARD)):
        if exclusion is not None and exclusion not in exclusions:
            continue
        tasks += [Task(name=f"{stem}R{suffix}", metric="mAP", positives=labels_, exclusion=exclusion)
                  for stem, labels_ in levels]  # fmt: skip
        tasks += [Task(name=f"{stem}D{suffix}", metric="micro-AP", positives=labels_, exclusion=exclusion)
                  for stem, labels_ in levels]  # fmt: skip
    return tuple(tasks)
