"""One service over one small collection for all tests that do not change it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hapvr.steps.project import Project
from tests.conftest import MakeOnce
from tests.serving.served import Client, fill_collection, serving
from tests.steps.search_projects import copied


@pytest.fixture(scope="session")
def collection(make_once: MakeOnce) -> Path:
    """The folder of `fill_collection`; tests only read it."""
    return make_once("served collection", fill_collection)


@pytest.fixture(scope="session")
def project(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copied(collection, tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def client(project: Project) -> Iterator[Client]:
    with serving(project) as service_client:
        yield service_client
