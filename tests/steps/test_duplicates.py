"""Duplicates of a real collection: kinds, groups, marks, and work that is not done twice."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from hapvr.cli import app
from hapvr.errors import DataError
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.search.marks import mark, unmark
from hapvr.steps.copy_measures import facts_by_content, read_measures
from hapvr.steps.duplicate_groups import (
    AWAY,
    RANDOM_WEIGHTS,
    make_duplicate_groups,
    outdated_groups,
)
from hapvr.steps.duplicate_pairs import (
    PAIRS_STAGE,
    duplicate_pairs,
    make_duplicate_pairs,
    outdated_pairs,
)
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import UNSURE, Searcher
from hapvr.steps.shard_rows import rows_place
from tests.conftest import make_feature_data
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import bundle_of, copied, with_real_weights

LIKELY = 0.5
MINIMUM = {"search.min_duplicate_probability": LIKELY}


@pytest.fixture(scope="module")
def project(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With pairs that were looked for."""
    project = copied(searchable, tmp_path_factory.mktemp("duplicates"), videos=True, **MINIMUM)
    make_all(project)
    return project


def make_all(project: Project) -> list[bool]:
    """Whether each shard was looked through."""
    searcher = Searcher.open(project)
    return [make_duplicate_pairs(project, searcher, key) for key in searcher.collection.shards()]


def kinds(project: Project) -> dict[tuple[str, str], str]:
    pairs = duplicate_pairs(project, Searcher.open(project), min_probability=LIKELY)
    return {(pair.first, pair.second): pair.kind for pair in pairs}


def test_pairs_have_their_kind(project: Project) -> None:
    """A re-encoded file is a copy, an excerpt within other footage is an overlap; strangers are no
    pair."""
    found = kinds(project)
    copy = ("in/short.mp4", "in/trips/copy of short.mp4")
    overlap = ("in/long.mp4", "in/trips/part.mp4")
    assert found == {copy: "copy", overlap: "overlap"}
    searcher = Searcher.open(project)
    (part,) = [
        one
        for one in duplicate_pairs(project, searcher, min_probability=LIKELY)
        if one.kind == "overlap"
    ]
    assert (part.first_start_s, part.second_start_s) == (10, 2)
    assert part.second_covered == pytest.approx(12 / 16, abs=0.02)
    assert part.first_covered == pytest.approx(12 / 40, abs=0.02)


def test_groups_are_written_and_say_what_to_keep(project: Project) -> None:
    """No copy is named by a model with random weights, but one is by the same model with others."""
    members = make_duplicate_groups(project, Searcher.open(project))
    assert sorted(member.video_id for member in members) == [
        "in/short.mp4",
        "in/trips/copy of short.mp4",
    ]
    assert {(member.keep, member.reason) for member in members} == {(False, RANDOM_WEIGHTS)}
    prior = Searcher.open(project).prior
    project.root.delete(GROUPS_PLACE)
    alone = Searcher.open(project)
    assert alone.prior == pytest.approx(0.5 / alone.num_videos)
    pairs = duplicate_pairs(project, alone, min_probability=0.5)
    copies = sum(2 * pair.probability for pair in pairs) / alone.num_videos
    assert copies == pytest.approx(4 / 9, abs=0.01)
    assert prior == pytest.approx((1 + copies) * alone.prior)
    bundle = shutil.copytree(Searcher.open(project).model, project.folder / "bundle")
    members = make_duplicate_groups(
        project, Searcher.open(project, model=str(with_real_weights(bundle)))
    )
    stored = pl.read_parquet(project.root.local_path(GROUPS_PLACE))
    assert (stored["keep"].sum(), stored["group"].n_unique()) == (1, 1)
    assert all(Path(path).is_file() for path in stored["path"])
    kept = next(Path(row["path"]) for row in stored.rows(named=True) if row["keep"])
    away = kept.rename(project.folder / "away.mp4")  # nobody deletes the other one by this
    assert {
        one.reason
        for one in make_duplicate_groups(project, Searcher.open(project, model=str(bundle)))
    } == {AWAY}
    away.rename(kept)


def index(project: Project, bundle: Path) -> None:
    make_feature_data(project)
    update_index(project, search_model(project, str(bundle)))


@pytest.fixture(scope="module")
def grown(project: Project, searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy that had nothing to do, then got a shard with an excerpt and a file of equal bytes."""
    folder = tmp_path_factory.mktemp("grown")
    videos = folder / "videos"
    changed = copied(project.folder, folder, videos=True, **MINIMUM)
    assert outdated_pairs(changed) == {}
    assert not any(make_all(changed))
    write_scenes(videos / "z new excerpt.mp4", list(range(300, 306)), fps=5)
    shutil.copy(videos / "other 1.mp4", videos / "z same bytes.mp4")
    index(changed, searchable / "bundle-0")
    assert len(outdated_pairs(changed)) == 1
    assert sum(make_all(changed)) == 1
    return changed


def test_only_what_is_new_is_looked_through(grown: Project, tmp_path: Path) -> None:
    """A new shard alone is searched, and finds the older videos; where one of them cannot be read,
    nothing is stored."""
    found = kinds(grown)
    assert found["in/short.mp4", "in/z new excerpt.mp4"] == "contained"
    assert found["in/other 1.mp4", "in/z same bytes.mp4"] == "copy"
    assert found["in/short.mp4", "in/trips/copy of short.mp4"] == "copy"
    project = copied(grown.folder, tmp_path, **MINIMUM)
    searcher = Searcher.open(project)
    new = searcher.collection.shard_of["in/z new excerpt.mp4"]
    old = searcher.collection.shard_of["in/short.mp4"]
    project.root.delete(rows_place(PAIRS_STAGE, new))
    project.root.local_path(f"features/{old}/data.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="no pairs of the shard"):
        make_duplicate_pairs(project, searcher, new)
    assert not project.root.exists(rows_place(PAIRS_STAGE, new))


def test_a_file_of_other_bytes_keeps_its_pairs(
    grown: Project, searchable: Path, tmp_path: Path
) -> None:
    """As after an edit of its tags, of which neither features nor index know."""
    project = copied(grown.folder, tmp_path, videos=True, **MINIMUM)
    before = kinds(project)
    opened = Searcher.open(project)
    key = opened.collection.shard_of["in/short.mp4"]
    metadata = opened.collection.metadata.of("in/short.mp4")
    with (tmp_path / "videos" / "short.mp4").open("ab") as file:
        file.write(b"\0\0\0\x10freehapvr-1.")
    index(project, searchable / "bundle-0")
    with pytest.MonkeyPatch.context() as patch:
        # a service that has looked at the file a second ago does not say that it knows the new one
        patch.setattr("hapvr.search.collection.REFRESH_S", 3600.0)
        assert not make_duplicate_pairs(project, opened, key)
        assert len(outdated_pairs(project)) == 1
        patch.setattr("hapvr.search.collection.REFRESH_S", 0.0)
        assert opened.collection.metadata.of("in/short.mp4").sha256 != metadata.sha256
        assert make_duplicate_pairs(project, opened, key)
    assert not any(make_all(project))
    assert kinds(project) == before


@pytest.mark.parametrize("stage", ["videos", "features", "search"])
def test_a_part_of_the_data_that_is_older_than_the_rest_gives_no_wrong_answer(
    grown: Project, searchable: Path, tmp_path: Path, stage: str
) -> None:
    """As after half a back-up was restored: such a video is not compared, and this is said."""
    project = copied(grown.folder, tmp_path, videos=True, **MINIMUM)
    video = tmp_path / "videos" / "z new excerpt.mp4"
    stored = project.root.local_path(stage)
    old = shutil.copytree(stored, tmp_path / "before")
    write_scenes(video, list(range(700, 706)), fps=5)
    index(project, searchable / "bundle-0")
    stored.rename(tmp_path / "after")
    shutil.copytree(old, stored)
    searcher = Searcher.open(project)
    asked = (
        Path("videos/short.mp4") if stage == "search" else video
    )  # what it showed, and what it shows
    answer = searcher.search(tmp_path / asked)
    found = {one.reference: one for one in answer.matches}.get("in/z new excerpt.mp4")
    assert found is None
    assert "in/z new excerpt.mp4" in answer.warnings[-1]
    if stage == "videos":
        with pytest.warns(UserWarning, match="1 videos are left out; .*z new excerpt"):
            groups = make_duplicate_groups(project, searcher)
        assert "in/z new excerpt.mp4" not in {one.video_id for one in groups}


def test_parts_of_the_collection_and_a_model_that_cannot_say_how_sure_it_is(
    grown: Project, tmp_path: Path
) -> None:
    """--between wants a video of each folder, by whole parts of its id. Without a
    calibration files of the same bytes are groups, with one line on why there is nothing else."""

    def told(*options: object) -> dict[str, Any]:
        given = [
            "--config",
            grown.folder / "config.yaml",
            "--set",
            f"search.min_duplicate_probability={LIKELY}",
        ]
        done = CliRunner().invoke(app, ["duplicates", "--json", *map(str, (*given, *options))])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    ids = ("in/z new excerpt.mp4", "in/short.mp4")
    found = told("--pairs", "--between", *ids)["pairs"]
    assert [(row["first"], row["second"]) for row in found] == [
        ("in/short.mp4", "in/z new excerpt.mp4")
    ]
    of_folder = told("--pairs", "--between", "in/trips/", "in")
    assert all("in/trips/" in row["first"] + row["second"] for row in of_folder["pairs"])
    assert {"copy", "overlap"} <= {row["kind"] for row in of_folder["pairs"]}
    part_of_a_name = told("--pairs", "--between", "in/trip", "in")
    assert part_of_a_name["pairs"] == []
    unknown = "no video of the collection has the id in/trip or"
    assert any(unknown in warning for warning in part_of_a_name["warnings"])
    tasks = tmp_path / "groups.label-studio.json"
    members = told(
        "--between",
        "in/other 1.mp4",
        "in/z same bytes.mp4",
        "--plan",
        tmp_path / "plan.json",
        "--out",
        tasks,
    )["groups"]
    assert {task["data"]["second"] for task in json.loads(tasks.read_text())} < {
        row["video_id"] for row in members
    }
    assert {row["video_id"] for row in members} == {"in/other 1.mp4", "in/z same bytes.mp4"}
    assert [row["keep"] for row in members] == [True, False]
    assert [row["action"] for row in json.loads((tmp_path / "plan.json").read_text())] == [
        "keep",
        "link",
    ]
    shutil.rmtree(grown.root.local_path("duplicate_pairs"))
    answer = told("--model", bundle_of(grown, tmp_path, fitted=None))
    groups = [(row["video_id"], row["keep"]) for row in answer["groups"]]
    known = [(row["video_id"], row["keep"]) for row in members]
    assert groups == known
    assert f"only files of the same bytes are listed; {UNSURE}" in answer["warnings"]
    make_all(grown)


def test_marks_change_pairs_and_groups_at_the_next_run(grown: Project) -> None:
    """No match: no pair, no common group. A match that no search found is listed. Taken back: as
    before."""
    searcher = Searcher.open(grown)

    def grouped() -> list[str]:
        members = make_duplicate_groups(grown, searcher)
        assert outdated_groups(grown) == ""
        return sorted(member.video_id for member in members)

    before = grouped()
    assert before == [
        "in/other 1.mp4",
        "in/short.mp4",
        "in/trips/copy of short.mp4",
        "in/z same bytes.mp4",
    ]
    copies = ("in/short.mp4", "in/trips/copy of short.mp4")
    mark(grown.root, *copies, "not_a_match")
    mark(grown.root, "in/short.mp4", "in/other 0.mp4", "match")
    assert grouped() == ["in/other 1.mp4", "in/z same bytes.mp4"]
    found = {
        (pair.first, pair.second): pair
        for pair in duplicate_pairs(grown, searcher, min_probability=0.9)
    }
    assert copies not in found
    told = found["in/other 0.mp4", "in/short.mp4"]
    assert (told.kind, told.mark) == ("same_incident", "match")
    assert told.probability == 0
    for other in ("in/trips/copy of short.mp4", "in/other 0.mp4"):
        unmark(grown.root, "in/short.mp4", other)
    assert grouped() == before
    assert ("in/other 0.mp4", "in/short.mp4") not in kinds(grown)


def test_another_champion_looks_through_all_shards(grown: Project, tmp_path: Path) -> None:
    """Pairs of the model before do not count; its index that comes back asks for them under another
    name."""
    assert outdated_pairs(grown) == {}
    assert set(kinds(grown).values()) == {"copy", "overlap", "contained"}
    first = Searcher.open(grown).current.model
    update_index(grown, search_model(grown, str(bundle_of(grown, tmp_path, seed=1))))
    assert list(outdated_pairs(grown)) == Searcher.open(grown).collection.shards()
    assert kinds(grown) == {
        ("in/other 1.mp4", "in/z same bytes.mp4"): "copy"
    }  # equal bytes need no model
    assert all(make_all(grown))
    assert outdated_pairs(grown) == {}
    update_index(grown, search_model(grown, first))
    assert list(outdated_pairs(grown)) == Searcher.open(grown).collection.shards()


def test_a_replaced_file_takes_its_pairs_along(grown: Project) -> None:
    """The file of another shard's pair shows something else now: its shard alone is searched again,
    and the pair is gone."""
    make_all(grown)
    pair = ("in/short.mp4", "in/z new excerpt.mp4")
    searcher = Searcher.open(grown)
    theirs = grown.root.local_path(
        rows_place(PAIRS_STAGE, searcher.collection.shard_of["in/short.mp4"])
    )
    assert pair in pl.read_parquet(theirs).select("first", "second").rows()
    assert pair in kinds(grown)
    write_scenes(grown.folder / "videos" / "z new excerpt.mp4", list(range(700, 706)))
    index(grown, Path(searcher.current.model))
    assert pair not in kinds(grown)
    assert list(outdated_pairs(grown)) == [searcher.collection.shard_of["in/z new excerpt.mp4"]]
    assert sum(make_all(grown)) == 1
    assert set(kinds(grown).values()) == {"copy", "overlap"}


def test_what_is_wrong_with_a_file_for_a_moment_is_not_kept(
    project: Project, tmp_path: Path
) -> None:
    """As its drive gives zeros, or another file has taken its place: what is measured is kept by
    the digest of the whole one, which is measured once it is back."""
    copy = copied(project.folder, tmp_path, videos=True, **MINIMUM)
    searcher = Searcher.open(copy)
    file = searcher.collection.metadata.of("in/short.mp4").path
    whole = file.read_bytes()
    half = len(whole) // 2
    file.write_bytes(whole[:half] + bytes(len(whole) - half))
    make_duplicate_groups(copy, searcher)
    sha256 = searcher.collection.metadata.of("in/short.mp4").sha256
    assert not read_measures(copy.root)[sha256]["damage"]
    file.write_bytes(whole)
    make_duplicate_groups(copy, searcher)
    assert facts_by_content(read_measures(copy.root))[sha256].damage == ""
