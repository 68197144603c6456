"""Resources, set by environment variables so that the same code serves the UI, schedules and the demo.

HAPVR_CONFIG: the configuration file (default configs/demo.yaml). HAPVR_VIDEOS: replaces the path of its first source.
HAPVR_MLFLOW_PAGE, HAPVR_DAGSTER_PAGE: where people reach the pages (default what `make ui` serves).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from assets.project import ProjectResource

if TYPE_CHECKING:
    from hapvr.config import AutomationConfig

CHECKOUT = Path(__file__).resolve().parent.parent


def project_resource() -> ProjectResource:
    """The project of the environment."""
    videos = os.environ.get("HAPVR_VIDEOS", "")
    return ProjectResource(
        config_path=os.environ.get("HAPVR_CONFIG", "configs/demo.yaml"),
        folder=str(CHECKOUT),
        overrides={"sources.0.path": videos} if videos else {},
        mlflow_page=os.environ.get("HAPVR_MLFLOW_PAGE", "http://127.0.0.1:5000"),
        dagster_page=os.environ.get("HAPVR_DAGSTER_PAGE", "http://127.0.0.1:3000"),
    )


def automation_settings() -> "AutomationConfig":
    """The configuration's section; defaults if the file is wrong, which every run, tick and `make demo` then says."""
    from hapvr.config import AutomationConfig
    from hapvr.config_file import load_config
    from hapvr.errors import ConfigError

    resource = project_resource()
    try:
        return load_config(CHECKOUT / resource.config_path, overrides=resource.overrides).automation
    except ConfigError:
        return AutomationConfig()
