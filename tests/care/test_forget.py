"""Forgetting videos: nothing of them is left in any file, everything else stays as it was."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hapvr.care.forget import forget, plan_forgetting
from hapvr.care.health import health
from hapvr.care.verify import verify_root
from hapvr.chain import CHAIN
from hapvr.chain.look import Look
from hapvr.chain.step import shards_of
from hapvr.data import manifest
from hapvr.errors import ArgumentError
from hapvr.search.current import current_index
from hapvr.search.marks import mark, read_marks
from hapvr.steps.duplicate_pairs import outdated_pairs, without_forgotten
from hapvr.steps.frames import make_frames
from hapvr.steps.pair_search import pairs_of_video
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.shard_rows import rows_place
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from tests.care.forgettable import (
    MARKER,
    STAGES,
    VIDEO,
    answers,
    call,
    call_planned_before,
    make_forgettable,
    run,
    shard_of,
    traces,
    traits,
)
from tests.commands.conftest import invoke
from tests.conftest import write_clip
from tests.steps.data_projects import digests, folder_settings, open_project
from tests.steps.search_projects import (
    copied,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a collection whose every stage, index, table, training and store has something
    of VIDEO. Copies of it share its MLflow artifacts, so no other file of tests reads it."""
    folder = tmp_path_factory.mktemp("forgettable")
    make_forgettable(folder)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Project:
    """A copy that a test may change."""
    return copied(made, tmp_path)


@dataclass(frozen=True)
class Forgotten:
    """A video was forgotten while a search was about to write of it; what was there before and
    after."""

    project: Project
    traits: list[bytes]
    shard: str
    """in which the video was"""
    traces_before: set[str]
    answers_before: dict[str, object]
    refusal: str
    """where what its file holds was not known"""
    plan: str
    """of a call without --yes"""
    is_changed_by_plan: bool
    traces: set[str]
    answers: dict[str, object]


@pytest.fixture(scope="module")
def forgotten(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Forgotten:
    project = copied(made, tmp_path_factory.mktemp("forgotten"))
    data = project.root.local_path("frames").parent
    shard = shard_of(project)
    wanted = traits(project)
    traces_before = traces(data, wanted)
    answers_before = answers(project)
    config = ("--config", str(project.folder / "config.yaml"))
    files = digests(data)
    inspected = project.root.local_path(project.shard("videos", shard).index_name)
    whole = inspected.read_bytes()
    inspected.write_bytes(b"")
    refusal = invoke("forget", VIDEO, "--yes", *config).stderr
    inspected.write_bytes(whole)
    plan = invoke("forget", VIDEO, *config).stdout
    is_changed_by_plan = digests(data) != files
    forget_while_pairs_are_written(project, shard)
    return Forgotten(
        project=project,
        traits=wanted,
        shard=shard,
        traces_before=traces_before,
        answers_before=answers_before,
        refusal=refusal,
        plan=plan,
        is_changed_by_plan=is_changed_by_plan,
        traces=traces(data, wanted),
        answers=answers(project),
    )


def forget_while_pairs_are_written(project: Project, shard: str) -> None:
    """As by a search that began before and writes what it found."""
    table = project.root.local_path(rows_place("duplicate_pairs", shard))
    with ThreadPoolExecutor(1) as pool, project.root.lock(f"duplicate_pairs/{shard}"):
        row_bytes = table.read_bytes()
        done = pool.submit(call, project, VIDEO, "--yes")
        while len(read_marks(project.root).rows()) > 1 and not done.done():
            time.sleep(0.1)
        time.sleep(1)
        table.write_bytes(row_bytes)

    done.result()


def test_every_stage_and_store_has_something_of_a_video(forgotten: Forgotten) -> None:
    assert {name.split("/")[0] for name in forgotten.traces_before} == STAGES


def test_nothing_is_forgotten_where_it_is_not_known_what_was_made_of_it(
    forgotten: Forgotten,
) -> None:
    """The record of what its file holds is damaged."""
    assert "is damaged" in forgotten.refusal


def test_a_plan_names_the_file_and_changes_nothing(forgotten: Forgotten) -> None:
    assert f"{VIDEO}: the file {forgotten.project.config.sources[0].path}" in forgotten.plan
    assert not forgotten.is_changed_by_plan


def test_nothing_is_left_of_a_forgotten_video(forgotten: Forgotten) -> None:
    """Its name, digests, pictures and vectors are in no file."""
    assert forgotten.traces == set()


def test_other_videos_keep_their_answers(forgotten: Forgotten) -> None:
    assert forgotten.answers == forgotten.answers_before


def test_marks_of_a_forgotten_video_go_and_others_stay(forgotten: Forgotten) -> None:
    rows = read_marks(forgotten.project.root).rows()
    assert [sorted(row.names) for row in rows] == [["in/other 1.mp4", "in/short.mp4"]]


@pytest.mark.parametrize(
    "step", ["videos", "frames", "features", "frame_descriptors", "search_index"]
)
def test_no_step_lacks_anything_once_a_video_was_forgotten(forgotten: Forgotten, step: str) -> None:
    assert not CHAIN[step].lacks(Look(forgotten.project))


def test_pairs_of_its_shard_alone_are_searched_again(forgotten: Forgotten) -> None:
    assert outdated_pairs(forgotten.project).keys() == {forgotten.shard}


def test_what_is_left_is_whole(forgotten: Forgotten) -> None:
    assert {check.state for check in verify_root(forgotten.project.root)} == {"ok"}


def test_the_users_file_stays_and_is_not_listed_again(forgotten: Forgotten) -> None:
    project = forgotten.project
    assert Path(project.config.sources[0].path, f"{MARKER}.mp4").is_file()
    assert not CHAIN["video_manifest"].run(project, "").new_shards


@pytest.mark.parametrize("step", ["videos", "frames", "whitening", "features"])
def test_no_step_makes_anything_of_a_forgotten_video(forgotten: Forgotten, step: str) -> None:
    """Each is done, and names it nowhere."""
    project = forgotten.project
    done = [CHAIN[step].run(project, key).done for key in shards_of(project, CHAIN[step])]
    assert not any(done)
    data = project.root.local_path("frames").parent
    assert traces(data, forgotten.traits) == set()


def test_a_damaged_list_of_what_was_forgotten_is_named(forgotten: Forgotten) -> None:
    file = forgotten.project.root.local_path(manifest.FORGOTTEN)
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    checks = verify_root(forgotten.project.root)
    file.write_bytes(whole)
    (check,) = [check for check in checks if check.state != "ok"]
    assert "manifest/forgotten.json" in check.message


@dataclass(frozen=True)
class Finished:
    """A call that was killed twice, and finished by the next one, which names nothing."""

    project: Project
    traces: set[str]
    states: set[str]
    """of all that is stored"""
    answers_before: dict[str, object]
    answers: dict[str, object]


@pytest.fixture(scope="module")
def finished(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    project = copied(made, tmp_path_factory.mktemp("finished"))
    data = project.root.local_path("frames").parent
    wanted = traits(project)
    answers_before = answers(project)
    for kill_at in (8, 11):  # between the data and the index of frames and of features
        call(project, VIDEO, "--yes", kill_at=kill_at)
    call(project, "--yes")
    left = traces(data, wanted)
    states = {check.state for check in verify_root(project.root)}
    run(project, "duplicate_pairs")
    return Finished(project, left, states, answers_before, answers(project))


def test_a_killed_call_is_finished_by_the_next(finished: Finished) -> None:
    assert finished.traces == set()


def test_a_killed_call_leaves_no_damage(finished: Finished) -> None:
    assert finished.states == {"ok"}


def test_searches_have_the_same_answers_after_a_killed_call(finished: Finished) -> None:
    assert finished.answers == finished.answers_before


def test_a_finished_call_is_not_remembered(finished: Finished) -> None:
    with pytest.raises(ArgumentError, match="there is nothing to forget"):
        plan_forgetting(finished.project, [])


@pytest.mark.parametrize("kill_at", [6, 18])
def test_a_call_that_was_planned_before_another_was_killed_finishes_both(
    project: Project, kill_at: int
) -> None:
    """What was made of a shard that was already written still counts as made of it."""
    data = project.root.local_path("frames").parent
    wanted = traits(project)
    call(project, VIDEO, "--yes", kill_at=kill_at)
    assert "forget_unfinished" in {concern.event for concern in health(project).concerns}
    call_planned_before(project, "in/other 2.mp4")
    assert traces(data, wanted) == set()
    assert {check.state for check in verify_root(project.root)} == {"ok"}
    with pytest.raises(ArgumentError, match="there is nothing to forget"):
        plan_forgetting(project, [])


@pytest.mark.parametrize(
    ("video_ids", "offline", "refusal"),
    [
        ([], "in", "nothing to forget"),
        ([], "out", "nothing to forget"),
        (["in/nobody.mp4"], "", "not a video of the manifest"),
    ],
    ids=["no file of the source is gone", "no such source", "no such video"],
)
def test_a_call_that_names_no_video_is_refused(
    made: Path, video_ids: list[str], offline: str, refusal: str
) -> None:
    project = Project.open(made / "config.yaml", folder=made)
    with pytest.raises(ArgumentError, match=refusal):
        plan_forgetting(project, video_ids, offline=offline)


GONE = "in/other 2.mp4"
COPY = "in/other 3.mp4"
MARKED = "in/other 4.mp4"
NEIGHBOUR = "in/other 1.mp4"


@dataclass(frozen=True)
class OfflineForgotten:
    """The videos of a source whose files are gone, here one, were forgotten."""

    project: Project
    planned: list[str]
    earlier_index: Path
    """damaged, of a model that answers no searches"""
    marked_names: list[list[str]]


@pytest.fixture(scope="module")
def offline_forgotten(made: Path, tmp_path_factory: pytest.TempPathFactory) -> OfflineForgotten:
    project = copied(made, tmp_path_factory.mktemp("offline"))
    root = project.root
    lose_file(project, GONE)
    mark(root, GONE, MARKED, "match")
    has_content_of(project, COPY, GONE)
    # the name of a video before that name was used again
    mark(root, MARKED, NEIGHBOUR, "match", names=(GONE, NEIGHBOUR))
    earlier_index = root.local_path(f"search/{'0' * 64}/index-0001")
    shutil.copytree(root.local_path(current_index(root).place), earlier_index)
    (earlier_index / "index.json").write_text("{")
    planned = plan_forgetting(project, [], offline="in")
    forget(project, planned)
    return OfflineForgotten(
        project=project,
        planned=[video.video_id for video in planned],
        earlier_index=earlier_index,
        marked_names=[sorted(row.names) for row in read_marks(root).rows()],
    )


def lose_file(project: Project, video_id: str) -> None:
    """Let the manifest name a file of a video that is not there."""
    root = project.root
    for key in manifest.shard_keys(root):
        rows = [
            replace(row, uri="/nowhere/x.mp4") if row.video_id == video_id else row
            for row in manifest.read_manifest_shard(root, key)
        ]
        manifest.write_manifest_shard(root, key, rows)


def test_of_an_offline_source_only_videos_without_a_file_are_forgotten(
    offline_forgotten: OfflineForgotten,
) -> None:
    assert offline_forgotten.planned == [GONE]


def test_a_search_finds_no_video_of_an_offline_source_that_was_forgotten(
    offline_forgotten: OfflineForgotten,
) -> None:
    searcher = Searcher.open(offline_forgotten.project)
    assert GONE not in searcher.collection.video_ids()


def test_a_damaged_index_that_does_not_answer_is_removed(
    offline_forgotten: OfflineForgotten,
) -> None:
    assert not offline_forgotten.earlier_index.exists()


def test_a_mark_of_a_content_that_stays_gets_the_name_that_stays(
    offline_forgotten: OfflineForgotten,
) -> None:
    assert [COPY, MARKED] in offline_forgotten.marked_names


def test_a_mark_by_a_name_that_was_used_again_gets_the_name_of_its_content(
    offline_forgotten: OfflineForgotten,
) -> None:
    assert [NEIGHBOUR, MARKED] in offline_forgotten.marked_names


def test_a_video_of_an_offline_source_may_come_back(offline_forgotten: OfflineForgotten) -> None:
    (key,) = make_manifest(offline_forgotten.project).new_shards
    rows = manifest.read_manifest_shard(offline_forgotten.project.root, key)
    assert [row.video_id for row in rows] == [GONE]


def has_content_of(project: Project, video_id: str, other: str) -> None:
    """Let the record of a video say that it has the content of another one."""
    shards = [project.shard("videos", key) for key in project.root.list_folders("videos")]
    (sha256,) = (
        row["sha256"] for shard in shards for row in shard.rows() if row["video_id"] == other
    )
    for shard in shards:
        rows = [
            row | ({"sha256": sha256} if row["video_id"] == video_id else {})
            for row in shard.rows()
        ]
        shard.write_index(rows, provenance=shard.require({}), fields=manifest.VIDEO_COLUMNS)


def test_a_whitening_stays_whatever_leaves(project: Project) -> None:
    """A video that is deleted changes what it was fitted on, and a source that is forgotten takes
    it away."""
    root = project.root
    key, *_ = manifest.training_shard_keys(project.root)
    for kept in (1, 0):
        manifest.write_manifest_shard(root, key, manifest.read_manifest_shard(root, key)[:kept])
        run(project, "frames")
        assert not CHAIN["whitening"].run(project, "").done


def test_a_step_that_waited_while_a_video_was_forgotten_leaves_it_out(tmp_path: Path) -> None:
    """It has read what the step before said of the video, whose file is still there."""
    for number in range(2):
        write_clip(tmp_path / "in" / f"{number}.mp4", seed=number, seconds=2)
    project = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    (key,) = make_manifest(project).shards
    make_videos(project, key)
    frames = project.shard("frames", key)
    with ThreadPoolExecutor(1) as pool:
        with frames.lock():
            step = pool.submit(make_frames, project, key)
            time.sleep(1.0)
            forget(project, plan_forgetting(project, ["in/0.mp4"]))

        step.result()

    assert [row["video_id"] for row in frames.rows()] == ["in/1.mp4"]


@pytest.mark.parametrize(
    ("step", "lock"),
    [
        ("watch_matches", "watch_matches/in-00000"),
        ("duplicate_groups", "duplicate_groups"),
    ],
)
def test_a_run_whose_searcher_was_open_before_names_no_forgotten_video(
    step: str, lock: str, made: Path, tmp_path: Path
) -> None:
    """It waits until what is forgotten is done."""
    project = copied(made, tmp_path)
    root = project.root
    shutil.rmtree(root.local_path(step))
    searcher = Searcher.open(project)

    def make_all() -> None:
        for key in shards_of(project, CHAIN[step]):
            CHAIN[step].run(project, key, searcher=searcher)

    with ThreadPoolExecutor(1) as pool:
        with root.lock(lock):
            made_meanwhile = pool.submit(make_all)
            time.sleep(1.0)
            forget(project, plan_forgetting(project, [VIDEO]))

        made_meanwhile.result()

    tables = list(root.local_path(step).rglob("*.parquet"))
    assert tables
    for table in tables:
        assert MARKER not in str(pq.read_table(table).to_pylist())


def test_pairs_that_were_found_before_a_video_was_forgotten_do_not_name_it(
    made: Path, tmp_path: Path
) -> None:
    """What a searcher that was open before has found is looked at once more before it is kept."""
    project = copied(made, tmp_path)
    searcher = Searcher.open(project)
    pairs = list(pairs_of_video(searcher, "in/long.mp4"))
    named = [pair for pair in pairs if VIDEO in (pair.first, pair.second)]
    assert named
    forget(project, plan_forgetting(project, [VIDEO]))
    assert without_forgotten(searcher, pairs) == [pair for pair in pairs if pair not in named]
