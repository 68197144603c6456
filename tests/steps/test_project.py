"""A data root that names the configuration which made it."""

from pathlib import Path

import pytest

from hapvr.errors import ConfigError, DataError
from hapvr.steps.project import Project, record_configuration
from hapvr.steps.training import train_model
from tests.conftest import small_settings
from tests.steps.data_projects import open_project


def test_a_data_root_stands_for_the_configuration_that_made_it(tmp_path: Path) -> None:
    project = open_project(tmp_path, small_settings(tmp_path / "videos", tmp_path / "data"))
    record_configuration(project)
    again = Project.open(tmp_path / "data")
    assert again.root.url == project.root.url
    assert again.config.train == project.config.train


def test_a_folder_without_a_configuration_is_not_a_collection(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hapvr index add"):
        Project.open(tmp_path)


def test_a_training_before_anything_is_ingested_says_what_comes_first(tmp_path: Path) -> None:
    project = open_project(tmp_path, small_settings(tmp_path / "videos", tmp_path / "data"))
    with pytest.raises(DataError, match=r"nothing is ingested .* run `hapvr download`"):
        train_model(project, run="first")
