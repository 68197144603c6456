"""What the demo says of a training that did not help, and what it does not print."""

import subprocess
import sys

import pytest

from pipelines.demo import sentence_without_gain
from tests.conftest import CHECKOUT


@pytest.mark.parametrize(
    ("trained", "untrained", "part"),
    [
        pytest.param(0.8, 0.9, "does not beat the untrained baseline", id="worse"),
        pytest.param(0.9, 0.9, "More training videos", id="equal"),
        pytest.param(1.0, 1.0, "more held-out clips make it harder", id="nothing is left to gain"),
    ],
)
def test_a_training_that_did_not_help_is_explained(
    trained: float, untrained: float, part: str
) -> None:
    assert part in sentence_without_gain("own-test", trained=trained, untrained=untrained)


def test_a_training_that_helped_needs_no_sentence() -> None:
    assert sentence_without_gain("own-test", trained=0.9, untrained=0.8) == ""


@pytest.mark.slow
def test_definitions_are_loaded_without_a_warning() -> None:
    """It would be printed by `make demo`, and by each of its servers."""
    command = [sys.executable, "-c", "import pipelines.definitions"]
    loaded = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert "Warning" not in loaded.stderr
