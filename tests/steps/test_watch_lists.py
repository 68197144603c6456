"""Watch lists over a real collection: what matches, what is compared again, what is announced."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from hapvr.search.marks import mark, unmark
from hapvr.steps.alerts import AlertOutbox
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.watch_lists import (
    WatchMatches,
    all_matches,
    clock_notes,
    make_watch_matches,
    unwatched_shards,
)
from hapvr.steps.watch_queries import LISTS
from tests.made_data import make_feature_data
from tests.scorer.bundles import scene, write_scenes
from tests.steps.search_projects import LONG, copied, with_real_weights

pytestmark = pytest.mark.slow

WEBHOOK: dict[str, object] = {"url": "http://127.0.0.1:9/nobody"}


@pytest.fixture(scope="module")
def watched(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A list of a clip, a still, a file that is no video, a link to nothing, and a name that is no
    UTF-8."""
    folder = tmp_path_factory.mktemp("watched")
    project = copied(searchable, folder, videos=True)
    update_index(
        project, search_model(project, str(folder / "bundle-0"))
    )  # the tests change this one
    queries = folder / "queries"
    write_scenes(queries / "leak.mp4", [500, *LONG[22:30], 501])
    write_scenes(queries / "nothing.mp4", list(range(900, 906)))
    Image.fromarray(scene(303)).resize((300, 250)).save(queries / "still.jpg", quality=80)
    (queries / "text.mp4").write_text("no video")
    (queries / "gone.mp4").symlink_to("nowhere.mp4")
    write_scenes(queries / "bytes.mp4", [700, *LONG[2:9]]).rename(
        queries / os.fsdecode(b"b\xff.mp4")
    )
    return project


def lists(
    project: Project, *watch_lists: dict[str, object], webhook: dict[str, object] | None = None
) -> Project:
    """The project with these watch lists."""
    watch = {"watch.lists": list(watch_lists), "watch.webhook": webhook}
    return Project.open(project.folder / "config.yaml", folder=project.folder, overrides=watch)


def with_broken_clock(clip: Path, to: Path) -> None:
    """The same pictures, with a clock that jumps by more than a day in the middle."""
    with av.open(str(clip)) as source, av.open(str(to), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.dts is not None]
        for number, packet in enumerate(packets):
            if 2 * number >= len(packets):
                jump = round(100_000 / packet.time_base)
                packet.pts += jump
                packet.dts += jump

            packet.stream = stream
            container.mux(packet)


def compare(project: Project) -> list[WatchMatches]:
    searcher = Searcher.open(project)
    return [make_watch_matches(project, searcher, key) for key in sorted(searcher.indexed)]


def pairs_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The name of the query's file and the id of the video."""
    return {(Path(row["query"]).name, row["video_id"]) for row in rows}


def pairs(project: Project) -> set[tuple[str, str]]:
    return pairs_of(all_matches(project))


def leaked(
    project: Project, *, webhook: dict[str, object] | None = None, at_least: float = 0.5
) -> Project:
    watch_list = {
        "name": "leaked",
        "path": str(project.folder / "queries"),
        "min_probability": at_least,
    }
    return lists(project, watch_list, webhook=webhook)


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Compared:
    """The list, compared with random weights and then with others."""

    project: Project
    announced_at_random: tuple[int, int]
    """messages that were sent and that wait, after the first"""
    announced: tuple[int, int]
    """and after the second"""
    made: list[WatchMatches]
    rows: Rows

    @property
    def pairs(self) -> set[tuple[str, str]]:
        return pairs_of(self.rows)


@pytest.fixture(scope="module")
def compared(watched: Project) -> Compared:
    project = leaked(watched, webhook=WEBHOOK)
    compare(project)
    announced_at_random = AlertOutbox(project.root).counts()
    with_real_weights(watched.folder / "bundle-0")
    comparisons = compare(project)
    announced = AlertOutbox(project.root).counts()
    return Compared(project, announced_at_random, announced, comparisons, all_matches(project))


def test_a_model_with_random_weights_announces_nothing(compared: Compared) -> None:
    assert compared.announced_at_random == (0, 0)


@pytest.mark.parametrize(
    ("query", "video_id"),
    [
        ("leak.mp4", "in/long.mp4"),
        ("still.jpg", "in/short.mp4"),
        ("still.jpg", "in/trips/copy of short.mp4"),
        (r"b\xff.mp4", "in/long.mp4"),
    ],
    ids=["a clip", "a picture", "a picture in a copy", "a name that is no UTF-8"],
)
def test_queries_find_their_videos(compared: Compared, query: str, video_id: str) -> None:
    assert (query, video_id) in compared.pairs


def test_a_query_that_shows_nothing_of_the_collection_finds_nothing(compared: Compared) -> None:
    assert "nothing.mp4" not in {query for query, _ in compared.pairs}


def test_files_of_a_list_that_are_no_videos_are_named(compared: Compared) -> None:
    """For each shard that was compared."""
    failed = [sorted(Path(name).name for name in made.failed) for made in compared.made]
    assert failed == [["gone.mp4", "text.mp4"]] * len(failed)


def test_a_match_says_where_it_is_and_by_which_model(compared: Compared) -> None:
    (row,) = [row for row in compared.rows if row["query"].endswith("leak.mp4")]
    assert row["verdict"] == "match"
    assert row["model"] == str(compared.project.folder / "bundle-0")
    assert (row["query_start_s"], row["query_end_s"]) == (1, 9)
    assert (row["video_start_s"], row["video_end_s"]) == (22, 30)


def test_each_match_is_announced_once(compared: Compared) -> None:
    assert compared.announced == (0, len(compared.pairs))


def since(rows: Rows) -> dict[tuple[str, str], str]:
    """Since when each match is known."""
    return {(row["query"], row["video_id"]): row["since"] for row in rows}


@dataclass(frozen=True)
class Shortened:
    """The list without the files that were no videos: shards that it asked for before and after it
    was compared again, and what that gave."""

    asked_before: set[str]
    made: list[WatchMatches]
    rows: Rows
    asked_after: set[str]


@pytest.fixture(scope="module")
def shortened(compared: Compared) -> Shortened:
    project = compared.project
    for name in ("text.mp4", "gone.mp4"):
        (project.folder / "queries" / name).unlink()
    asked_before = set(unwatched_shards(project))
    comparisons = compare(project)
    return Shortened(
        asked_before, comparisons, all_matches(project), set(unwatched_shards(project))
    )


def test_a_list_that_changed_is_compared_with_every_shard_once(
    compared: Compared, shortened: Shortened
) -> None:
    assert shortened.asked_before == set(Searcher.open(compared.project).indexed)
    assert all(made.done for made in shortened.made)
    assert shortened.asked_after == set()


def test_what_was_found_before_keeps_its_time_and_is_not_announced_again(
    compared: Compared, shortened: Shortened
) -> None:
    assert all(since(compared.rows).values())
    assert since(shortened.rows) == since(compared.rows)
    assert not any(made.announced for made in shortened.made)


@pytest.mark.usefixtures("shortened")
def test_what_is_found_without_a_webhook_is_posted_once_there_is_one(watched: Project) -> None:
    """So the shards are asked for where it comes or goes."""
    assert len(unwatched_shards(leaked(watched))) == 3


@pytest.mark.usefixtures("shortened")
def test_another_way_to_score_asks_for_every_shard(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapvr.steps.search_fingerprint.SCORES_FORMAT", 0)
    project = compared.project
    assert set(unwatched_shards(project)) == set(Searcher.open(project).indexed)


@pytest.mark.usefixtures("shortened")
def test_what_is_compared_is_not_compared_again(compared: Compared) -> None:
    assert not any(made.done for made in compare(compared.project))


@dataclass(frozen=True)
class Grown:
    """A shard more: what was asked for, and what a comparison gave after one that ended before it
    could announce anything."""

    asked: list[str]
    made: list[WatchMatches]
    rows: Rows


@pytest.fixture(scope="module")
def grown(compared: Compared, shortened: Shortened) -> Grown:
    project = compared.project
    write_scenes(project.folder / "videos" / "z new.mp4", [600, *LONG[22:27], 601])
    make_feature_data(project)
    update_index(project, search_model(project, str(project.folder / "bundle-0")))
    asked = list(unwatched_shards(project))
    with pytest.MonkeyPatch.context() as ended:
        ended.setattr(AlertOutbox, "put", None)  # the process ends there
        with pytest.raises(TypeError):
            compare(project)

    comparisons = compare(project)
    return Grown(asked, comparisons, all_matches(project))


def test_a_new_shard_alone_is_compared(grown: Grown) -> None:
    assert len(grown.asked) == 1
    assert ("leak.mp4", "in/z new.mp4") in pairs_of(grown.rows)


def test_a_match_whose_announcement_was_cut_off_is_announced(grown: Grown) -> None:
    assert [made.announced for made in grown.made if made.done] == [1]


def test_every_match_of_a_clip_has_its_second(grown: Grown) -> None:
    rows = [row for row in grown.rows if row["query"].endswith("leak.mp4")]
    assert all(row["query_start_s"] is not None for row in rows)


def test_marks_and_lists_change_what_matches(watched: Project) -> None:
    """Marked as no match: gone; taken back: there again. It is not announced a second time. Other
    queries are left alone."""
    project = leaked(watched, webhook=WEBHOOK)
    (watched.folder / "queries" / "gone.mp4").unlink(missing_ok=True)
    (watched.folder / "queries" / "text.mp4").write_text("no video")
    compare(project)
    before = pairs(project)
    counts = AlertOutbox(project.root).counts()
    mark(project.root, str(watched.folder / "queries" / "leak.mp4"), "in/long.mp4", "not_a_match")
    assert unwatched_shards(project)
    read = Searcher.read
    asked = set()
    with pytest.MonkeyPatch.context() as seen:
        seen.setattr(
            Searcher,
            "read",
            lambda self, query, **to: asked.add(query.name) or read(self, query, **to),
        )
        compare(project)

    assert asked == {"leak.mp4", "text.mp4"}  # what failed is tried again
    assert pairs(project) == before - {("leak.mp4", "in/long.mp4")}
    unmark(project.root, str(watched.folder / "queries" / "leak.mp4"), "in/long.mp4")
    compare(project)
    assert pairs(project) == before
    assert AlertOutbox(project.root).counts() == counts


def test_a_list_that_was_removed_during_a_run_is_compared_once_it_is_back(
    watched: Project,
) -> None:
    """As it is when somebody removes a clip on the page and watches it again."""
    project = lists(watched)
    query = (watched.folder / "queries" / "leak.mp4").read_bytes()
    place = watched.root.local_path(f"{LISTS}/again/{hashlib.sha256(query).hexdigest()}.mp4")

    def remove_at_the_end(done: int, total: int) -> None:
        if done == total:
            place.unlink(missing_ok=True)

    searcher = Searcher.open(project)
    for key in sorted(searcher.indexed):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(query)
        make_watch_matches(project, searcher, key, progress=remove_at_the_end)

    place.write_bytes(query)
    compare(project)
    videos = {row["video_id"] for row in all_matches(project) if row["watch_list"] == "again"}
    shutil.rmtree(place.parent)
    assert "in/long.mp4" in videos


def test_a_list_that_cannot_be_read_is_named_and_keeps_its_matches(watched: Project) -> None:
    """One that is not there, or has nothing, as where its drive was: others are compared, and
    nothing that was found is lost."""
    folder = watched.folder / "queries"
    root = watched.root
    compare(leaked(watched))
    before = pairs(watched)
    assert before
    (watched.folder / "empty").mkdir()
    root.local_path(f"{LISTS}/begun").mkdir(parents=True)  # a copy that was not finished
    other_clip = write_scenes(watched.folder / "other" / "again.mp4", [500, *LONG[22:30], 501])
    away = folder.rename(watched.folder / "away")
    places = {"leaked": folder, "gone": "not/there", "none": "empty", "other": other_clip.parent}
    project = lists(watched, *({"name": name, "path": str(path)} for name, path in places.items()))
    for comparison in compare(project):
        assert sorted(name.partition(":")[0] for name in comparison.failed) == [
            "gone",
            "leaked",
            "none",
        ]
        assert all(
            "cannot be read" in said and "expected a folder" in said
            for said in comparison.failed.values()
        )

    assert pairs(project) == before | {
        ("again.mp4", video) for name, video in before if name == "leak.mp4"
    }
    assert unwatched_shards(project)
    away.rename(folder)
    compare(leaked(watched))
    assert pairs(watched) == before


@pytest.mark.parametrize("stage", ["videos", "features"])
def test_a_shard_that_is_damaged_is_said_and_loses_nothing(watched: Project, stage: str) -> None:
    """Answers leave its videos out, queries of lists fail and keep what was found, and no content
    is made up for marks."""
    compare(leaked(watched))
    before = pairs(watched)
    project = leaked(watched, at_least=0.51)
    file = watched.root.local_path(watched.shard(stage, "in-00001").index_name)
    whole = file.read_bytes()
    file.write_bytes(whole[:99])
    answer = Searcher.open(project).search(watched.folder / "queries" / "leak.mp4")
    assert f"{stage}/in-00001" in answer.warnings[-1]
    assert "leak.mp4" in "".join(name for made in compare(project) for name in made.failed)
    assert pairs(project) == before
    file.write_bytes(whole)
    assert any(made.done for made in compare(project))
    assert pairs(project) == before


def test_a_video_whose_clock_is_broken_is_found_and_said(watched: Project) -> None:
    """Its seconds are not those of players, but it was compared as any other."""
    clip = write_scenes(watched.folder / "clip.mp4", [800, *LONG[22:30], 801])
    with_broken_clock(clip, watched.folder / "videos" / "z jump.mkv")
    project = leaked(watched, webhook=WEBHOOK)
    (watched.folder / "queries" / "gone.mp4").unlink(missing_ok=True)
    (watched.folder / "queries" / "text.mp4").unlink(missing_ok=True)
    make_feature_data(project)
    update_index(project, search_model(project, str(watched.folder / "bundle-0")))
    with_real_weights(watched.folder / "bundle-0")
    assert [made.failed for made in compare(project) if made.failed] == []
    assert ("leak.mp4", "in/z jump.mkv") in pairs(project)
    (note,) = clock_notes(project)
    assert note.startswith("in/z jump.mkv: the file's clock jumps from ")
    metadata = Searcher.open(project).collection.metadata
    assert metadata.clock_notes(["in/long.mp4", "in/z jump.mkv"]) == [note]
    messages = [json.loads(text) for _, text in AlertOutbox(project.root).due()]
    notes = {message["video_id"]: message["clock_note"] for message in messages}
    assert f"in/z jump.mkv: {notes['in/z jump.mkv']}" == note
    assert notes["in/long.mp4"] == ""
