"""Duplicates of a real collection: kinds, groups, marks, and work that is not done twice."""

import json
import shutil
from collections.abc import Iterator
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
from tests.made_data import make_feature_data
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import bundle_of, copied, with_real_weights

LIKELY = 0.5
COPIES = ("in/short.mp4", "in/trips/copy of short.mp4")
MINIMUM = {"search.min_duplicate_probability": LIKELY}
PREFERRED = {"duplicates.prefer": ["in/trips/"]}
"""As each of their pictures stays for a second, the copies of the collection are as good."""


@pytest.fixture(scope="module")
def project(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With pairs that were looked for."""
    project = copied(
        searchable, tmp_path_factory.mktemp("duplicates"), videos=True, **MINIMUM, **PREFERRED
    )
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
    overlap = ("in/long.mp4", "in/trips/part.mp4")
    assert kinds(project) == {COPIES: "copy", overlap: "overlap"}


def test_a_pair_says_where_each_shows_the_other_and_how_much(project: Project) -> None:
    searcher = Searcher.open(project)
    (part,) = [
        one
        for one in duplicate_pairs(project, searcher, min_probability=LIKELY)
        if one.kind == "overlap"
    ]
    assert (part.first_start_s, part.second_start_s) == (10, 2)
    assert part.second_covered == pytest.approx(12 / 16, abs=0.02)
    assert part.first_covered == pytest.approx(12 / 40, abs=0.02)


def test_a_model_with_random_weights_names_no_copy_to_keep(project: Project) -> None:
    members = make_duplicate_groups(project, Searcher.open(project))
    assert sorted(member.video_id for member in members) == list(COPIES)
    assert {(member.keep, member.reason) for member in members} == {(False, RANDOM_WEIGHTS)}


def test_the_copies_of_a_collection_raise_its_prior(project: Project) -> None:
    """Once groups are written, the share of videos that have copies is known."""
    make_duplicate_groups(project, Searcher.open(project))
    prior = Searcher.open(project).prior
    project.root.delete(GROUPS_PLACE)
    alone = Searcher.open(project)
    assert alone.prior == pytest.approx(0.5 / alone.num_videos)
    pairs = duplicate_pairs(project, alone, min_probability=0.5)
    copies = sum(2 * pair.probability for pair in pairs) / alone.num_videos
    assert copies == pytest.approx(4 / 9, abs=0.01)
    assert prior == pytest.approx((1 + copies) * alone.prior)


@pytest.fixture(scope="module")
def trained(project: Project, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of the index, as if its weights were not random."""
    folder = tmp_path_factory.mktemp("trained")
    bundle = shutil.copytree(Searcher.open(project).model, folder / "bundle")
    return str(with_real_weights(bundle))


def test_groups_are_written_and_say_what_to_keep(project: Project, trained: str) -> None:
    """One file of the group is kept; the table has the place of each."""
    make_duplicate_groups(project, Searcher.open(project, model=trained))
    stored = pl.read_parquet(project.root.local_path(GROUPS_PLACE))
    assert stored["keep"].sum() == 1
    assert stored["group"].n_unique() == 1
    assert all(Path(path).is_file() for path in stored["path"])


def test_where_the_file_to_keep_is_away_the_other_one_is_not_given_up(
    project: Project, trained: str
) -> None:
    searcher = Searcher.open(project, model=trained)
    (kept,) = [one for one in make_duplicate_groups(project, searcher) if one.keep]
    file = searcher.collection.metadata.of(kept.video_id).path
    away = file.rename(project.folder / "away.mp4")
    members = make_duplicate_groups(project, Searcher.open(project, model=trained))
    away.rename(file)
    assert {member.reason for member in members} == {AWAY}


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


def test_a_new_shard_finds_the_older_videos(grown: Project) -> None:
    """It alone was searched, see `grown`; files of equal bytes are copies."""
    pairs = kinds(grown)
    assert pairs["in/short.mp4", "in/z new excerpt.mp4"] == "contained"
    assert pairs["in/other 1.mp4", "in/z same bytes.mp4"] == "copy"
    assert pairs[COPIES] == "copy"


def test_where_an_older_video_cannot_be_read_no_pairs_are_stored(
    grown: Project, tmp_path: Path
) -> None:
    project = copied(grown.folder, tmp_path, **MINIMUM)
    searcher = Searcher.open(project)
    new = searcher.collection.shard_of["in/z new excerpt.mp4"]
    old = searcher.collection.shard_of["in/short.mp4"]
    project.root.delete(rows_place(PAIRS_STAGE, new))
    project.root.local_path(f"features/{old}/data.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="no pairs of the shard"):
        make_duplicate_pairs(project, searcher, new)
    assert not project.root.exists(rows_place(PAIRS_STAGE, new))


@pytest.mark.slow
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


STAGES = ("videos", "features", "search")
REPLACED = "in/z new excerpt.mp4"


@pytest.fixture(scope="module")
def replaced(grown: Project, searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy where the file of REPLACED shows something else, which the index knows; the stages as
    they were are in its folder `before`."""
    folder = tmp_path_factory.mktemp("replaced")
    project = copied(grown.folder, folder, videos=True, **MINIMUM)
    for stage in STAGES:
        shutil.copytree(project.root.local_path(stage), folder / "before" / stage)
    write_scenes(folder / "videos" / "z new excerpt.mp4", list(range(700, 706)), fps=5)
    index(project, searchable / "bundle-0")
    return project


def with_older(replaced: Project, folder: Path, stage: str) -> Project:
    """A copy of `replaced` where a stage is as before, as after half a back-up was restored."""
    project = copied(replaced.folder, folder, **MINIMUM)
    shutil.rmtree(project.root.local_path(stage))
    shutil.copytree(replaced.folder / "before" / stage, project.root.local_path(stage))
    return project


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_part_of_the_data_that_is_older_than_the_rest_gives_no_wrong_answer(
    replaced: Project, tmp_path: Path, stage: str
) -> None:
    """A video of which it is a part is not compared, and this is said."""
    searcher = Searcher.open(with_older(replaced, tmp_path, stage))
    shown_before = stage == "search"
    query = "short.mp4" if shown_before else "z new excerpt.mp4"
    answer = searcher.search(replaced.folder / "videos" / query)
    assert REPLACED not in {match.reference for match in answer.matches}
    assert REPLACED in answer.warnings[-1]


@pytest.mark.slow
def test_a_video_whose_record_is_older_than_its_features_is_in_no_group(
    replaced: Project, tmp_path: Path
) -> None:
    project = with_older(replaced, tmp_path, "videos")
    with pytest.warns(UserWarning, match="1 videos are left out; .*z new excerpt"):
        members = make_duplicate_groups(project, Searcher.open(project))
    assert REPLACED not in {member.video_id for member in members}


def told(project: Project, *options: object) -> dict[str, Any]:
    """What `hapvr duplicates --json` says with these options."""
    config = ["--config", str(project.folder / "config.yaml")]
    config += ["--set", f"search.min_duplicate_probability={LIKELY}"]
    done = CliRunner().invoke(app, ["duplicates", "--json", *config, *map(str, options)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_pairs_between_two_videos_are_theirs(grown: Project) -> None:
    pairs = told(grown, "--pairs", "--between", REPLACED, "in/short.mp4")["pairs"]
    assert [(row["first"], row["second"]) for row in pairs] == [("in/short.mp4", REPLACED)]


def test_pairs_between_folders_have_a_video_of_each(grown: Project) -> None:
    pairs = told(grown, "--pairs", "--between", "in/trips/", "in")["pairs"]
    assert all("in/trips/" in row["first"] + row["second"] for row in pairs)
    assert {"copy", "overlap"} <= {row["kind"] for row in pairs}


def test_a_part_of_a_name_is_no_folder(grown: Project) -> None:
    answer = told(grown, "--pairs", "--between", "in/trip", "in")
    assert answer["pairs"] == []
    unknown = "no video of the collection has the id in/trip or"
    assert any(unknown in warning for warning in answer["warnings"])


SAME_BYTES = [("in/other 1.mp4", True), ("in/z same bytes.mp4", False)]
"""Ids of the only files of equal bytes, and which of them is kept."""


def test_groups_between_two_videos_come_with_a_plan_and_tasks(
    grown: Project, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    tasks = tmp_path / "groups.label-studio.json"
    ids = [video_id for video_id, _ in SAME_BYTES]
    members = told(grown, "--between", *ids, "--plan", plan, "--out", tasks)["groups"]
    assert [(row["video_id"], row["keep"]) for row in members] == SAME_BYTES
    assert {task["data"]["second"] for task in json.loads(tasks.read_text())} < set(ids)
    assert [row["action"] for row in json.loads(plan.read_text())] == ["keep", "link"]


def test_people_are_told_what_to_do_where_no_copy_is_named(grown: Project) -> None:
    """As of each group with different bytes, where the network has random weights."""
    config = ["--config", str(grown.folder / "config.yaml")]
    config += ["--set", f"search.min_duplicate_probability={LIKELY}"]
    lines = CliRunner().invoke(app, ["duplicates", *config]).stdout.splitlines()
    reasons = [line for line in lines if line.startswith("  No copy is named to keep")]
    assert reasons
    assert any(
        f"groups that name no copy to keep: {len(reasons)}; compare" in line for line in lines
    )


@pytest.mark.slow
def test_a_model_that_cannot_say_how_sure_it_is_names_files_of_equal_bytes_alone(
    grown: Project, tmp_path: Path
) -> None:
    """With one line on why there is nothing else."""
    project = copied(grown.folder, tmp_path, **MINIMUM)
    shutil.rmtree(project.root.local_path(PAIRS_STAGE))
    answer = told(project, "--model", bundle_of(project, tmp_path, fitted=None))
    assert [(row["video_id"], row["keep"]) for row in answer["groups"]] == SAME_BYTES
    assert f"only files of the same bytes are listed; {UNSURE}" in answer["warnings"]


GROUPED = sorted([*COPIES, *(video_id for video_id, _ in SAME_BYTES)])
MATCH = ("in/other 0.mp4", "in/short.mp4")
"""Two videos that show nothing of each other."""


@pytest.fixture
def marked(grown: Project) -> Iterator[Project]:
    """The copies are marked as no match, and MATCH as one, until the test ends."""
    mark(grown.root, *COPIES, "not_a_match")
    mark(grown.root, *MATCH, "match")
    yield grown
    unmark(grown.root, *COPIES)
    unmark(grown.root, *MATCH)


def grouped(project: Project) -> list[str]:
    """The videos of the groups, which are made again."""
    members = make_duplicate_groups(project, Searcher.open(project))
    assert outdated_groups(project) == ""
    return sorted(member.video_id for member in members)


def test_what_is_marked_as_no_match_is_no_pair_and_in_no_common_group(marked: Project) -> None:
    assert COPIES not in kinds(marked)
    assert grouped(marked) == [video_id for video_id, _ in SAME_BYTES]


def test_a_match_that_no_search_found_is_listed(marked: Project) -> None:
    pairs = duplicate_pairs(marked, Searcher.open(marked), min_probability=0.9)
    (pair,) = [pair for pair in pairs if (pair.first, pair.second) == MATCH]
    assert pair.kind == "same_incident"
    assert pair.mark == "match"
    assert pair.probability == 0


def test_marks_that_are_taken_back_leave_no_trace(grown: Project) -> None:
    assert grouped(grown) == GROUPED
    mark(grown.root, *COPIES, "not_a_match")
    mark(grown.root, *MATCH, "match")
    make_duplicate_groups(grown, Searcher.open(grown))
    unmark(grown.root, *COPIES)
    unmark(grown.root, *MATCH)
    assert grouped(grown) == GROUPED
    assert MATCH not in kinds(grown)


@pytest.mark.slow
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


@pytest.mark.slow
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
