"""`hapvr search` and `hapvr pairs` as people call them, on a real collection with an index."""

import csv
import json
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest
from typer.testing import CliRunner

from hapvr.cli import app
from hapvr.steps.project import Project
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG, copied

VSC_COLUMNS = ["query_id", "ref_id", "query_start", "query_end", "ref_start", "ref_end", "score"]


@pytest.fixture(scope="module")
def project(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copied(searchable, tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seconds of long.mp4, from its second 25 on, after two of something else."""
    return write_scenes(tmp_path_factory.mktemp("query") / "query.mp4", [500, 501, *LONG[25:31]])


def call(project: Project, *arguments: object, exit_code: int = 0) -> str:
    words = [str(word) for word in arguments]
    result = CliRunner().invoke(app, [*words, "--config", str(project.folder / "config.yaml")])
    assert result.exit_code == exit_code, result.stdout + result.stderr
    return result.stdout + (result.stderr if exit_code else "")


@pytest.mark.slow
def test_a_person_reads_where_it_was_found(project: Project, clip: Path) -> None:
    short = call(project, "search", clip)
    text = call(project, "search", clip, "--all")
    assert "answer   1 video matches" in text
    folded = text.count("  no match  ")
    assert folded
    assert f"{folded} more that do not match: --all shows them" in short
    assert short.count("in/") == 9 - folded
    assert "compared with 9 of 9 videos" in text
    assert "query 0:02-0:08 = 0:25-0:31" in text
    assert text.index("in/long.mp4") < text.index("   2  ")
    assert "covers 75 % of the query, 15 % of the video" in text


@pytest.mark.slow
def test_why_a_video_is_found(project: Project, clip: Path, tmp_path: Path) -> None:
    """In words and as JSON; an unknown video is an error, before the query is read."""
    text = call(project, "search", clip, "--explain", "in/long.mp4")
    assert "video    in/long.mp4: shown" in text
    assert "view     in the whole picture: a candidate, similarity +" in text
    assert "query 0:02-0:08 = 0:25-0:31" in text
    assert "log odds" in text
    (explanation,) = json.loads(
        call(project, "search", clip, "--explain", "in/long.mp4", "--json")
    )["explanations"]
    assert explanation == text.splitlines()
    unreadable = tmp_path / "unreadable.mp4"
    unreadable.write_text("no video")
    assert "no video 'in/absent.mp4'" in call(
        project, "search", unreadable, "--explain", "in/absent.mp4", exit_code=1
    )


def test_programs_get_json(project: Project, clip: Path) -> None:
    """One object with every query, also where one of them cannot be used."""
    answer = json.loads(call(project, "search", clip, "--json", "--id", "in/short.mp4"))
    first, second = answer["queries"]
    assert first["matches"][0]["reference"] == "in/long.mp4"
    assert first["matches"][0]["segments"][0]["reference_start_s"] == 25
    assert 0 < first["prior"] < 1
    assert first["headline"][:15] == "1 video matches"
    assert first["precision"] == 0.95
    assert first["untrained"]
    assert Path(first["model"]).is_dir()
    assert first["matches"][0]["verdict"] == "match"
    assert first["matches"][-1]["verdict"] == "no match"
    assert second["matches"][0]["reference"] == "in/trips/copy of short.mp4"
    output = call(
        project, "search", "--id", "in/absent.mp4", "--id", "in/short.mp4", "--json", exit_code=1
    )
    failed, fine = json.loads(output)["queries"]
    assert "no video 'in/absent.mp4'" in failed["error"]
    assert fine["matches"]


@pytest.mark.slow
def test_tables_have_the_columns_of_vsc2022(project: Project, clip: Path, tmp_path: Path) -> None:
    """CSV, and Parquet with the same rows."""
    call(project, "search", clip, "--out", tmp_path / "m.csv")
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert list(rows[0])[:7] == VSC_COLUMNS
    assert rows[0]["verdict"] == "match"
    assert rows[0]["same_file"] == "false"
    assert rows[-1]["verdict"] == "no match"
    assert Path(rows[0]["model"]).is_dir()
    assert rows[0]["ref_id"] == "in/long.mp4"
    assert float(rows[0]["ref_start"]) == 25
    assert float(rows[0]["ref_end"]) == 31
    call(project, "search", clip, "--out", tmp_path / "m.parquet")
    stored = pl.read_parquet(tmp_path / "m.parquet")
    assert stored.columns[:7] == VSC_COLUMNS
    assert len(stored) == len(rows)


def test_matches_are_tasks_that_people_label(project: Project, clip: Path, tmp_path: Path) -> None:
    """As Label Studio imports them: both videos, the names that `pairs import` reads, and a verdict
    where it is not unsure."""
    call(project, "search", os.path.relpath(clip), "--out", tmp_path / "m.label-studio.json")
    task, *others = json.loads((tmp_path / "m.label-studio.json").read_text())
    served = "/data/local-files/?d="
    assert task["data"] == {
        "first": str(clip),
        "second": "in/long.mp4",
        "first_video": served + quote(str(clip)[1:]),
        "second_video": served
        + quote(str(project.path(project.config.sources[0].path) / "long.mp4")[1:]),
    }
    (prediction,) = task["predictions"]
    choice = {
        "from_name": "verdict",
        "to_name": "second",
        "type": "choices",
        "value": {"choices": ["match"]},
    }
    assert prediction == {"score": pytest.approx(prediction["score"]), "result": [choice]}
    assert others[-1]["predictions"][0]["result"][0]["value"] == {"choices": ["not a match"]}


def test_pairs_are_marked_listed_and_unmarked(project: Project, tmp_path: Path) -> None:
    """By id, by file and by digest; a search leaves out what does not match."""
    assert "no pair is marked" in call(project, "pairs", "list")
    copy = tmp_path / "renamed.mp4"
    shutil.copy(project.path(project.config.sources[0].path) / "short.mp4", copy)
    call(project, "pairs", "mark", copy, "in/trips/copy of short.mp4", "not-a-match")
    matches = json.loads(call(project, "search", "--id", "in/short.mp4", "--json"))["queries"][0][
        "matches"
    ]
    assert "in/trips/copy of short.mp4" not in [match["reference"] for match in matches]
    (row,) = json.loads(call(project, "pairs", "list", "--json"))["marks"]
    assert row["verdict"] == "not_a_match"
    assert "not-a-match" in call(project, "pairs", "list")
    call(project, "pairs", "unmark", row["second"], row["first"])
    assert json.loads(call(project, "pairs", "unmark", row["first"], row["second"], "--json")) == {
        "removed": None
    }
    matches = json.loads(call(project, "search", "--id", "in/short.mp4", "--json"))["queries"][0][
        "matches"
    ]
    assert matches[0]["reference"] == "in/trips/copy of short.mp4"
    assert "is neither a video of the collection" in call(
        project, "pairs", "mark", "x", copy, "match", exit_code=1
    )
    assert "have the same content" in call(
        project, "pairs", "mark", copy, "in/short.mp4", "match", exit_code=2
    )
