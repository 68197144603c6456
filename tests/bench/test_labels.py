"""The table of clips that show the same."""

from pathlib import Path

import pytest

from bench.labels import read_labels
from hapvr.errors import DataError

HEADER = "# how it was made\nclip,other,kind,note\n"


def test_labels_hold_in_both_directions(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        HEADER
        + "a.mp4,b.mp4,same_footage,an excerpt\n"
        + "c.mp4,a.mp4,background,on a screen\n"
        + "a.mp4,d.mp4,same_scene_other_take,\n"
    )
    labels = read_labels(table)
    assert labels.sharing(["a.mp4"]) == {"a.mp4", "b.mp4", "c.mp4"}
    assert labels.sharing(["b.mp4", "d.mp4"]) == {"a.mp4", "b.mp4", "d.mp4"}
    assert labels.retaking(["d.mp4"]) == {"a.mp4"}
    assert labels.retaking(["b.mp4"]) == frozenset()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("clip,other\na.mp4,b.mp4\n", "columns"),
        (HEADER + "a.mp4,b.mp4,alike,\n", "'alike'"),
        (HEADER + "a.mp4,a.mp4,same_footage,\n", "a.mp4, a.mp4"),
    ],
    ids=["columns", "kind", "itself"],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(text)
    with pytest.raises(DataError, match=problem):
        read_labels(table)


def test_the_shipped_table_can_be_read() -> None:
    labels = read_labels()
    assert "preview-car-detection.mp4" in labels.sharing(["car-detection.mp4"])
    assert "asl-yes.mkv" in labels.retaking(["asl-no.mkv"])
