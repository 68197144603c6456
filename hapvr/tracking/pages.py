"""Addresses of pages of MLflow's UI. base: where it is served.

Each asks for the mode for model training: without that MLflow shows conversations first, and hides runs and models.
"""

MODE = "?workflowType=machine_learning"


def runs_page(base: str, experiment_id: str) -> str:
    """The table of an experiment's runs."""
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs{MODE}"


def run_page(base: str, experiment_id: str, run_id: str) -> str:
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}{MODE}"


def model_page(base: str, name: str) -> str:
    """The versions of a registered model."""
    return f"{base.rstrip('/')}/#/models/{name}{MODE}"


def version_page(base: str, name: str, version: int) -> str:
    return f"{base.rstrip('/')}/#/models/{name}/versions/{version}{MODE}"
