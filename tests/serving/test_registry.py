"""The service while versions of its registry come and go."""

from dataclasses import replace
from pathlib import Path

import pytest

from hapvr.errors import DataError
from hapvr.registry.champions import promote
from hapvr.search.current import current_index, write_current
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import tracker_of
from tests.serving.served import Client, serving
from tests.steps.search_projects import copied, register_bundle

SHORT = "in/short.mp4"


@pytest.mark.slow
def test_a_deleted_champion_goes_on_answering_and_this_is_said(
    collection: Path, tmp_path: Path
) -> None:
    """The champion; another champion; no champion; the version itself gone: answers stay, and each
    state is said."""
    project = copied(collection, tmp_path)
    first = register_bundle(project, collection / "bundle-0")
    registry = tracker_of(project).client
    kept = registry.get_model_version("hapvr", str(first))
    write_current(
        project.root, replace(current_index(project.root), model=f"models:/hapvr/{first}")
    )

    with serving(project) as client:
        matches, registry_warnings = asked(client)
        assert registry_warnings == []
        second_version = str(
            registry.create_model_version("hapvr", source=kept.source, run_id=kept.run_id).version
        )
        promote(registry, "hapvr", int(second_version), reason="better")
        assert asked(client) == (
            matches,
            [
                f"the index was made with models:/hapvr/{first}, "
                "and the champion is "
                f"models:/hapvr/{second_version}; `hapvr index update` "
                "brings it up to date"
            ],
        )
        registry.delete_model_version("hapvr", second_version)
        assert asked(client) == (
            matches,
            [
                f"the registry has no champion of hapvr any more; models:/hapvr/{first} "
                "keeps answering"
            ],
        )
        registry.delete_model_version("hapvr", str(first))
        left, registry_warnings = asked(client)
        assert left == matches
        assert "has no champion of hapvr any more" in registry_warnings[0]
        assert client.get("/index").json["warnings"][1:] == registry_warnings

    with pytest.raises(DataError, match=f"models:/hapvr/{first} is not in the registry"):
        Searcher.open(project)


def asked(client: Client) -> tuple[list[str], list[str]]:
    """What is found, and what is said of the registry beside the warning of random weights."""
    answer = client.search(id=SHORT)
    assert answer.status == 200, answer.body
    result = answer.json["answer"]
    return [match["reference"] for match in result["matches"]], result["warnings"][1:]
