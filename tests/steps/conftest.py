"""The small collection, opened for searches."""

from pathlib import Path

import pytest

from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from tests.steps.search_projects import copied


@pytest.fixture(scope="session")
def searched_project(searchable: Path) -> Project:
    """Only to be read."""
    return Project.open(searchable / "config.yaml", folder=searchable)


@pytest.fixture(scope="session")
def searcher(searched_project: Project) -> Searcher:
    return Searcher.open(searched_project)


@pytest.fixture
def own_copy(searchable: Path, tmp_path: Path) -> Project:
    """A copy that a test may change."""
    return copied(searchable, tmp_path)
