"""A week of a team's project in fast-forward: what arrives, what runs by itself, what is promoted
and what is not."""

from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from tests.orchestration.conftest import Storage
from tests.orchestration.week import FLOWING, SEARCHED, Answer, Record, begun, lived

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
ONCE_EACH = Counter(dict.fromkeys((*FLOWING, *SEARCHED), 1))
WATCHERS = ("new_videos", "retrain_on_schedule")


@pytest.fixture(scope="module")
def record(
    postgresql: Storage,
    mlflow_server: str,
    clips_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Record:
    """The week, once for all tests."""
    folder = tmp_path_factory.mktemp("week")
    with begun(folder, clips_folder, postgresql, mlflow_server=mlflow_server) as week:
        return lived(week)


def reason(answer: Answer) -> str:
    """Why nothing was asked for."""
    assert isinstance(answer, dg.SkipReason)
    return answer.skip_message or ""


def test_nothing_is_asked_for_before_there_are_videos(record: Record) -> None:
    assert not record.monday.asked_before


def test_a_manifest_that_has_all_videos_is_not_made_again(record: Record) -> None:
    assert reason(record.monday.looked_again)


@pytest.mark.parametrize("asset", FLOWING)
def test_each_shard_flows_to_training_data_once(record: Record, asset: str) -> None:
    assert record.monday.asked[asset] == len(record.monday.shards)


def test_once_shards_have_flowed_nothing_is_asked_for(record: Record) -> None:
    assert not record.monday.asked_again


def test_the_untrained_baseline_is_the_first_champion(record: Record) -> None:
    assert record.monday.champion == 1
    assert record.monday.tags["hapvr.gate.champion"] == "1"


@pytest.mark.parametrize("watcher", WATCHERS)
def test_where_nothing_is_new_nothing_is_trained(record: Record, watcher: str) -> None:
    assert reason(record.tuesday.answers[watcher])


def test_the_search_follows_a_promotion(record: Record) -> None:
    """And nothing else does."""
    shards = record.tuesday.num_shards
    assert record.tuesday.asked == Counter({"frame_descriptors": shards, "search_index": 1})
    assert not record.tuesday.asked_again


def test_a_drive_that_goes_and_comes_back_is_seen_each_time(record: Record) -> None:
    """Dagster takes a run key once."""
    assert len(set(record.tuesday.run_keys)) == 4
    assert not record.tuesday.asked_after


def test_new_videos_make_one_shard_more(record: Record) -> None:
    assert record.wednesday.new_shards == {"inbox-00001"}


def test_a_new_shard_flows_to_the_search_once(record: Record) -> None:
    assert record.wednesday.asked == ONCE_EACH


@pytest.mark.parametrize("watcher", WATCHERS)
def test_no_training_starts_beside_another(record: Record, watcher: str) -> None:
    """The run that is under way is named."""
    assert record.wednesday.running in reason(record.wednesday.answers[watcher])


def test_a_better_model_is_promoted(record: Record) -> None:
    """It says which version and run it was compared with."""
    tags = record.wednesday.tags
    assert tags["hapvr.gate.decision"] == "promoted"
    assert tags["hapvr.gate.champion"] == "2"
    assert tags["hapvr.gate.champion_run"] == record.wednesday.champion_run


def test_a_worse_model_is_not_promoted(record: Record) -> None:
    assert record.thursday.tags["hapvr.gate.decision"] == "not promoted"
    assert record.thursday.champion == 3


def test_checks_show_that_the_gate_refused(record: Record) -> None:
    assert record.thursday.checks == ["FAILED", "FAILED"]


def test_each_training_is_one_version_and_one_run(record: Record) -> None:
    """And so is the baseline."""
    assert record.thursday.versions == [1, 2, 3, 4]
    assert len(record.thursday.run_keys) == 4
    assert len(set(record.thursday.run_keys)) == 4


def test_a_rollback_makes_the_champion_before_champion(record: Record) -> None:
    assert record.friday.champion == 2
    assert record.friday.tags["hapvr.gate.decision"] == "champion by rollback"


@pytest.mark.parametrize("asset", [*FLOWING, "whitening"])
def test_nothing_is_computed_twice(record: Record, asset: str) -> None:
    assert set(record.saturday.made[asset].values()) == {1}


def test_a_recording_that_goes_on_under_its_name_is_read_again(record: Record) -> None:
    """Once."""
    assert record.saturday.asked == ONCE_EACH
    assert not record.saturday.asked_again


def test_shards_that_an_older_copy_lacks_are_found_again(record: Record) -> None:
    assert "inbox-00001" in record.sunday.restored_shards


def test_a_data_root_whose_drive_is_away_is_not_begun_anew(record: Record) -> None:
    assert "mount its drive" in reason(record.sunday.answer)


def test_what_dagster_knows_of_an_older_root_is_void_in_a_new_one(record: Record) -> None:
    wanted = {key: ["videos", "frames"] for key in record.sunday.partitions}
    assert record.sunday.requested == wanted
