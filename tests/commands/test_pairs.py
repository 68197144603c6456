"""`hapvr pairs`: marks as CSV, a round trip, tables of labelling tools, and lines that cannot be
used."""

import re
from pathlib import Path

import pytest

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import write_manifest_shard
from hapvr.search.marks import mark, read_marks
from tests.commands.conftest import Call
from tests.conftest import small_settings, write_settings

A = "a" * 64
B = "b" * 64
C = "c" * 64


def collection(folder: Path) -> tuple[Path, DataRoot]:
    """A configuration and its empty data root."""
    folder.mkdir(exist_ok=True)
    return write_settings(
        folder / "config.yaml", small_settings(folder, folder / "data")
    ), DataRoot(folder / "data")


def test_marks_come_back_from_csv_as_they_were(call: Call, tmp_path: Path) -> None:
    """Into another collection: verdicts, names, times and people; what was said there before is
    replaced, the rest stays."""
    config_here, here = collection(tmp_path / "one")
    config_there, there = collection(tmp_path / "other")
    mark(here, A, B, "match", names=("first, of Ö.mp4", '"second".mp4'), by="anna")
    mark(here, C, A, "not_a_match", names=("c.mp4", "a.mp4"))
    mark(there, A, B, "not_a_match")
    mark(there, B, C, "match")
    kept = read_marks(there).of(B, C)
    assert call("pairs", "list", "--out", tmp_path / "marks.csv", "--config", config_here).code == 0
    write_manifest_shard(here, "own-00000", [])
    for out in (
        config_here,
        here.local_path("marks/x.csv"),
    ):  # no file of another kind is replaced, nor a record
        assert call("pairs", "list", "--out", out, "--config", config_here).code == 2

    done = call("pairs", "import", tmp_path / "marks.csv", "--config", config_there, "--json")
    assert done.json == {"marks": 2, "new": 1}
    marks = read_marks(there)
    assert marks.pop((B, C)) == kept
    assert marks == read_marks(here)


def test_tables_of_labelling_tools_are_read(call: Call, tmp_path: Path) -> None:
    """Other columns and orders, a byte order mark, and files instead of digests."""
    config, root = collection(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"1")
    lines = (
        "id,verdict,second,annotator,first",
        f"7,not a match,{tmp_path / 'clip.mp4'},1,{A}",
        f"8,Match,{A},2,{B}",
    )
    (tmp_path / "labels.csv").write_text("\ufeff" + "\r\n".join(lines))
    outcome = call("pairs", "import", tmp_path / "labels.csv", "--config", config)
    assert outcome.out.startswith("2 marks are kept, 2 of them new")
    assert sorted(row.verdict for row in read_marks(root).rows()) == ["match", "not_a_match"]


HEAD = "first,second,verdict,since"
BAD = {
    f"{HEAD}\n{A},{B},perhaps,": "line 2: the verdict is 'perhaps'; expected match or not a match",
    f"{HEAD}\n{A},{B},match,\n{A},absent.mp4,match,": "line 3: pairs: 'absent.mp4' is "
    "neither a video",
    f"{HEAD}\n{A},{A},match,": "line 2: pairs: a.* have the same content",
    f"{HEAD}\n{A},{B},match,yesterday": "line 2: since is 'yesterday'; expected ISO 8601",
    f"{HEAD}\n{A},{B},match,\n{B},{A},not-a-match,": "line 3: it contradicts an earlier line",
    f"{HEAD}\n{A}": "line 2: the verdict is ''",
    HEAD + f"\n{A},{A},match," * 7: "7 lines cannot be used.*line 6: ",
    f"{HEAD},verdict\n{A},{B},match,match": "has no column verdict, or has it twice",
    "first,second\n": "has no column verdict, or has it twice; expected a CSV file with the "
    "columns first, second, verdict",
    "": "has no column first, second, verdict, or",
    f"{HEAD}\n\xff": "can't decode byte",
    f'{HEAD}\n{A},{B},match,"\n{A},{C},match,': "unexpected end of data",
}


@pytest.mark.parametrize("text", BAD, ids=BAD.values())
def test_bad_lines_are_named_and_nothing_is_marked(call: Call, tmp_path: Path, text: str) -> None:
    config, root = collection(tmp_path)
    mark(root, B, C, "match")
    before = read_marks(root)
    (tmp_path / "marks.csv").write_bytes(text.encode("latin-1"))
    done = call("pairs", "import", tmp_path / "marks.csv", "--config", config)
    assert done.code == 1
    assert re.search(BAD[text], done.error)
    assert read_marks(root) == before
