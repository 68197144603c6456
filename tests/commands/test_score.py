"""`hapvr score`."""

import shutil
from pathlib import Path

import pytest

from hapvr.model.settings import NetworkSettings
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import fit_calibration
from tests.commands.conftest import Call
from tests.scorer.bundles import make_bundle


@pytest.fixture(scope="module")
def folder(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle, and the clips of `scenes`."""
    folder = tmp_path_factory.mktemp("score")
    make_bundle(
        folder,
        calibration=fit_calibration([0.0] * 10, [-0.004] * 20, source={}, frame_threshold=0.7),
    )
    shutil.copytree(scenes, folder, dirs_exist_ok=True)
    return folder


def test_score_tells_verdict_similarity_probability_and_segments(call: Call, folder: Path) -> None:
    """What verdicts rest on, the warning of random weights, a line per pair, and the matching parts
    as clock times."""
    clips = [folder / name for name in ("a.mp4", "copy.mp4", "b.mp4")]
    done = call("score", *clips, "--model", folder / "bundle", "--segments")
    assert done.code == 0, done.error
    model, verdicts, warning, *lines = done.out.splitlines()
    scorer = load_bundle(folder / "bundle")
    threshold = scorer.calibration.threshold(0.95).similarity
    assert model == f"model    {folder / 'bundle'}"
    assert verdicts == (
        f"verdicts at precision 0.95, where 33.3 % of the pairs match: a match is a "
        f"similarity from {threshold:+.4f} on, or from a lower one where aligned frames follow one "
        "course"
    )
    assert warning.startswith("warning  the frozen networks of this model have random weights")
    (wanted,) = scorer.score_pairs([(folder / "a.mp4", folder / "copy.mp4")])
    verdict = scorer.calibration.verdict(
        wanted.similarity, precision=0.95, one_course=wanted.one_course
    )
    assert lines[0] == (
        f"{verdict:<8} {folder / 'a.mp4'} - {folder / 'copy.mp4'}: similarity "
        f"{wanted.similarity:+.4f}  probability "
        f"{100 * wanted.probability:5.1f} %"
    )
    if verdict != "no match":
        assert lines[1].startswith("         query 0:02-0:05 = reference 0:04-0:07")
    assert "b.mp4" in lines[-1] or lines[-1] == "         no matching segments"


@pytest.mark.slow
def test_score_says_that_a_file_is_the_same(call: Call, folder: Path, tmp_path: Path) -> None:
    """Equal bytes are a match for sure, whatever the model finds; the model is said to be untrained
    where it is."""
    again = shutil.copy(folder / "a.mp4", tmp_path / "again.mp4")
    done = call("score", folder / "a.mp4", again, "--model", folder / "bundle", "--json")
    (pair,) = done.json["pairs"]
    assert [pair[name] for name in ("same_file", "verdict", "probability")] == [True, "match", 1]
    assert not done.json["untrained"]
    bundle = make_bundle(
        tmp_path / "untrained", settings=NetworkSettings(attention=False, comparator=False)
    )
    lines = call(
        "score", folder / "a.mp4", again, folder / "b.mp4", "--model", bundle
    ).out.splitlines()
    assert lines[0] == f"model    {bundle}, untrained"
    assert [line.endswith("  the same file") for line in lines[3:]] == [True, False]


def test_score_as_json_has_thresholds_errors_and_warning(call: Call, folder: Path) -> None:
    """Rows in order, the threshold table, the warning with each answer, and exit 1 for a video that
    cannot be read."""
    done = call(
        "score",
        folder / "a.mp4",
        folder / "bad.mp4",
        folder / "b.mp4",
        "--model",
        folder / "bundle",
        "--json",
    )
    assert done.code == 1
    bad, good = done.json["pairs"]
    assert bad["error"].startswith("not_video: ")
    assert bad["similarity"] is None
    assert bad["segments"] is None
    assert bad["verdict"] is None
    assert 0 <= good["probability"] <= 1
    assert good["verdict"] in ("match", "no match", "unsure")
    assert done.json["warning"] == good["warning"] == bad["warning"] != ""
    assert [row["precision"] for row in done.json["thresholds"]] == [0.5, 0.8, 0.9, 0.95, 0.99]


@pytest.mark.slow
def test_folders_and_lists_are_read(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The videos of a folder and those that a list names, a row per pair."""
    clips = tmp_path / "clips"
    (clips / "deeper").mkdir(parents=True)
    for name in ("a.mp4", "deeper/b.mp4"):
        (clips / name).symlink_to(folder / Path(name).name)
    (clips / "notes.md").write_text("no video")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "#1.mp4").symlink_to(folder / "a.mp4")
    (tmp_path / "list.txt").write_text(
        f"# two clips\n#1.mp4\n{folder / 'b.mp4'}\n\n{folder / 'copy.mp4'}\n"
    )
    done = call(
        "score",
        clips,
        tmp_path / "list.txt",
        folder / "a.mp4",
        "--model",
        folder / "bundle",
        "--json",
    )
    assert done.code == 0, done.error
    rows = done.json["pairs"]
    queries = [str(clips / name) for name in ("a.mp4", "deeper/b.mp4")]
    references = ["#1.mp4", *(str(folder / name) for name in ("b.mp4", "copy.mp4", "a.mp4"))]
    assert [(row["query"], row["reference"]) for row in rows] == [
        (q, r) for q in queries for r in references
    ]
    assert all(
        row["verdict"] and row["similarity"] is not None and row["warning"] and not row["error"]
        for row in rows
    )
