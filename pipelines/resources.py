"""Resources, set by environment variables so that the same code serves the UI, schedules and the
demo.

HAPVR_CONFIG: the configuration file (default configs/demo.yaml). HAPVR_VIDEOS: replaces the path of
its first source. HAPVR_MLFLOW_PAGE, HAPVR_DAGSTER_PAGE: where people reach the pages (default what
`make ui` serves).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assets.project import ProjectResource
    from hapvr.automation import AutomationConfig
    from hapvr.steps.project import Project

CHECKOUT = Path(__file__).resolve().parent.parent


WITHOUT_COPIES = {
    "configs/demo.yaml": "configs/demo_lite0.yaml",
    "configs/own_videos.yaml": "configs/own_videos_lite0.yaml",
}
"""Replaces a shipped configuration if the package of its frame network is not installed."""


def config_path() -> str:
    """The configuration file of the environment; relative paths start from the checkout."""
    from hapvr.networks.copies import is_package_usable

    named = os.environ.get("HAPVR_CONFIG") or "configs/demo.yaml"
    if named in WITHOUT_COPIES and not is_package_usable():
        return WITHOUT_COPIES[named]
    return named


def open_project() -> "Project":
    """The project of the environment, without Dagster, which takes seconds to import. Raises
    ConfigError."""
    from hapvr.steps.project import Project

    return Project.open(CHECKOUT / config_path(), folder=CHECKOUT, overrides=_overrides())


def project_resource() -> "ProjectResource":
    """The project of the environment."""
    from assets.project import ProjectResource

    return ProjectResource(
        config_path=config_path(),
        folder=str(CHECKOUT),
        overrides=_overrides(),
        mlflow_page=os.environ.get("HAPVR_MLFLOW_PAGE", "http://127.0.0.1:5000"),
        dagster_page=os.environ.get("HAPVR_DAGSTER_PAGE", "http://127.0.0.1:3000"),
    )


def automation_settings() -> "AutomationConfig":
    """The configuration's section; defaults if the file is wrong, which every run, tick and `make
    demo` then reports."""
    from hapvr.automation import AutomationConfig
    from hapvr.errors import ConfigError

    try:
        return open_project().config.automation
    except ConfigError:
        return AutomationConfig()


def _overrides() -> dict[str, str]:
    videos = os.environ.get("HAPVR_VIDEOS", "")
    return {"sources.0.path": videos} if videos else {}
