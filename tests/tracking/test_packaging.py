"""The model card on run and version."""

from __future__ import annotations

import pytest

from hapvr.errors import DataError
from hapvr.tracking.packaging import link_card, read_card
from hapvr.tracking.registry import list_versions
from hapvr.tracking.runs import Tracker
from tests.tracking.conftest import Registered


def test_card_is_linked_once_and_read_by_number_or_alias(registered: Registered) -> None:
    """Description and tag name the run's file, however often it is linked; before that there is none to read."""
    tracker = Tracker(registered.uri, "hapvr")
    version = tracker.client.get_model_version_by_alias("hapvr", "champion")
    with pytest.raises(DataError, match="has no model card"):
        read_card("hapvr", "champion", registered.uri)
    tracker.client.update_model_version("hapvr", version.version, description="promoted: for a reason")
    tracker.text(version.run_id, "# The card\n", "model_card.md")
    for _ in range(2):
        link_card(tracker, "hapvr", int(version.version), version.run_id, summary="### Metrics" + 6000 * ".")
    assert read_card("hapvr", "champion", registered.uri) == "# The card\n"
    assert read_card("hapvr", str(version.version), registered.uri) == "# The card\n"
    described = tracker.client.get_model_version("hapvr", version.version).description
    assert described.startswith(
        f"promoted: for a reason\n\nModel card: runs:/{version.run_id}/model_card.md, or `hapvr models card 1`\n\n### Metrics."
    )
    assert len(described) == 5000  # PostgreSQL takes no more
    (listed,) = list_versions("hapvr", registered.uri)
    assert listed["description"] == "promoted: for a reason"
    for wrong in ("99", "nobody"):
        with pytest.raises(DataError, match=f"no hapvr version {wrong}"):
            read_card("hapvr", wrong, registered.uri)
