"""The assets of search over stored features, and the sensor that keeps them up to date, with a
champion in a registry."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from hapvr.collection import COLLECTION_FILE, add_folders, update_collection
from hapvr.progress import no_progress
from hapvr.search.current import current_index
from hapvr.steps.project import Project
from tests.conftest import short_edits, write_clip
from tests.orchestration.conftest import Storage, execute
from tests.orchestration.followed_search import Followed, Record, followed, lived

pytestmark = pytest.mark.slow
INDEX = {"search_index": [""]}
GROUPS = {"duplicate_groups": [""]}


@pytest.fixture(scope="module")
def record(
    small_project: Project, clips_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Record:
    """All changes, once for all tests."""
    with followed(small_project, tmp_path_factory.mktemp("search")) as search:
        return lived(search, clips_folder)


def test_nothing_is_asked_for_without_a_champion(record: Record) -> None:
    assert record.first_champion.asked_before == {}


def test_descriptors_follow_a_champion(record: Record) -> None:
    assert record.first_champion.asked == {"frame_descriptors": record.shards}


def test_the_index_follows_its_descriptors(record: Record) -> None:
    assert record.first_champion.asked_of_descriptors == INDEX
    assert record.first_champion.asked_of_index == {}


def test_the_index_shows_its_model_and_shards(record: Record) -> None:
    assert record.first_champion.shown["model"] == "models:/hapvr/1"
    assert record.first_champion.shown["added"] == record.shards


def test_an_index_that_finds_its_frames_passes_its_check(record: Record) -> None:
    assert record.first_champion.is_recall_good


def test_another_champion_leaves_the_index_until_its_own_is_made(record: Record) -> None:
    assert record.next_champion.index_before == record.first_champion.index
    assert record.next_champion.asked == {"frame_descriptors": record.shards}


def test_an_index_makes_the_descriptors_that_are_missing(record: Record) -> None:
    assert record.next_champion.index.model == "models:/hapvr/2"


def test_a_rollback_takes_the_index_of_before(record: Record) -> None:
    """Nothing but the index is asked for, once."""
    assert record.next_champion.digest_of_rollback == record.first_champion.index.digest
    assert record.next_champion.asked_of_rollback == INDEX
    assert record.next_champion.index_of_rollback.place == record.first_champion.index.place
    assert record.next_champion.asked_at_end == {}


def test_pairs_follow_the_index_where_duplicates_are_wanted(record: Record) -> None:
    assert record.uncalibrated.asked == {"duplicate_pairs": record.shards}


@pytest.mark.parametrize("asset", ["frame_descriptors", "duplicate_pairs"])
def test_nothing_is_made_of_a_benchmark(record: Record, asset: str) -> None:
    reason = record.uncalibrated.reasons_of_benchmark[asset]
    assert "a benchmark made of the collection's videos" in reason


def test_a_model_that_is_not_calibrated_makes_no_pairs(record: Record) -> None:
    assert "fitted on no searches" in record.uncalibrated.reason
    assert not record.uncalibrated.is_calibrated


def test_pairs_show_their_kinds_and_the_surest(record: Record) -> None:
    assert record.duplicates.shown_of_all_but_last >= {"kinds", "surest_pairs"}


def test_groups_of_some_shards_fail_their_check(record: Record) -> None:
    """And the shard that is missing is asked for."""
    assert not record.duplicates.were_all_compared
    assert record.duplicates.asked_of_the_last == {"duplicate_pairs": record.shards[-1:]}


def test_pairs_show_their_model_and_that_it_is_calibrated(record: Record) -> None:
    assert record.duplicates.shown_of_last["model"] == "models:/hapvr/3"
    assert record.duplicates.is_calibrated


def test_groups_follow_a_mark(record: Record) -> None:
    assert record.duplicates.asked_of_mark == GROUPS
    assert record.duplicates.asked_at_end == {}


def test_groups_of_all_shards_show_what_they_hold(record: Record) -> None:
    groups = record.duplicates.groups
    assert record.duplicates.are_all_compared
    assert groups["groups"]
    assert groups.keys() >= {"members", "bytes_more_than_needed", "dagster/column_schema"}


def test_a_new_list_is_searched_in_every_shard(record: Record) -> None:
    assert record.watched.asked == {"watch_matches": sorted(record.shards)}
    assert record.watched.shown.keys() >= {"matches", "new_alerts", "dagster/row_count"}


def test_a_query_that_is_no_video_fails_its_check(record: Record) -> None:
    assert not record.watched.are_queries_usable


def test_alerts_that_nobody_takes_fail_their_check(record: Record) -> None:
    assert not record.watched.are_alerts_delivered


def test_a_list_that_changes_is_searched_again(record: Record) -> None:
    assert record.watched.asked_of_removal == {"watch_matches": sorted(record.shards)}
    assert record.watched.are_others_usable
    assert record.watched.asked_at_end == {}


def test_without_a_benchmark_the_untrained_baseline_stays(
    small_project: Project, tmp_path: Path
) -> None:
    """As in a collection of `hapvr index add`: `retrain` ends well and trains nothing, and the
    index is the baseline's."""
    with followed(small_project, tmp_path) as search:
        search.configure(evaluation={"benchmarks": [], "validation": None})
        with short_edits():
            result = execute(search.instance, "retrain")

        assert result.success
        assert not result.get_asset_materialization_events()
        search.make("search_index")
        assert current_index(search.project.root).model == "models:/hapvr/1"


def test_a_collection_without_a_registry_is_indexed_by_its_baseline(tmp_path: Path) -> None:
    """Nothing but the folder of the bundle says which model that is, once the index is gone."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    root = tmp_path / "root"
    project = add_folders(root, [tmp_path / "in"])
    update_collection(project, lambda _: nullcontext(no_progress))
    model = current_index(project.root).model
    shutil.rmtree(root / "search")
    with Storage().instance(tmp_path, root / COLLECTION_FILE) as instance:
        instance.add_dynamic_partitions("shards", ["in-00000"])
        search = Followed(project, instance)
        search.make("frame_descriptors", "in-00000")
        assert search.shown("frame_descriptors")["model"] == model
        search.make("search_index")
        assert search.shown("search_index")["model"] == model
