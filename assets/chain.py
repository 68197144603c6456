"""Runs that belong together: the assets of one chain, and the attempts of one run."""

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from hapvr.stages.project import Project
    from hapvr.stages.training import TrainingRun

PARENT_RUN_TAG = "hapvr/parent_run_id"


def chain_id(run: dg.DagsterRun) -> str:
    """Id of the chain's first attempt, after which its training is named; of a run of its own its first attempt."""
    return run.tags.get(PARENT_RUN_TAG) or run.root_run_id or run.run_id


def chain_model(run: dg.DagsterRun, project: "Project") -> "TrainingRun":
    """What the chain has trained; outside a chain, what was trained last. Raises DataError if there is none yet."""
    from hapvr.stages.training import trained_run

    return trained_run(project, chain_id(run))
