"""Forgetting videos: nothing of them is left in any file, everything else stays as it was."""

import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import lance
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from hapvr.benchmark.definition import load_definition
from hapvr.care.forget import forget, plan_forgetting
from hapvr.care.health import health
from hapvr.care.verify import verify_root
from hapvr.chain import CHAIN
from hapvr.chain.look import Look
from hapvr.chain.step import shards_of
from hapvr.data import manifest
from hapvr.errors import ArgumentError
from hapvr.search.collection import current_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.marks import mark, read_marks
from hapvr.steps.duplicate_pairs import duplicate_pairs, outdated_pairs, without_forgotten
from hapvr.steps.pair_search import pairs_of_video
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.shard_rows import rows_place
from hapvr.steps.training import tracker_of
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_frames, make_videos, open_frames
from hapvr.steps.watch_queries import make_watch_list
from hapvr.tables import write_table
from tests.commands.conftest import invoke
from tests.conftest import CHECKOUT, MakeOnce, make_feature_data, write_clip
from tests.scorer.bundles import write_scenes
from tests.steps.data_projects import digests, folder_settings, open_project
from tests.steps.search_projects import (
    DIMS,
    LONG,
    bundle_of,
    copied,
    register_bundle,
    with_real_weights,
    write_collection,
)

pytestmark = pytest.mark.slow
MARKER = "marker-QXZ7"
VIDEO = f"in/{MARKER}.mp4"
RUN = "run-1"
STAGES = {"manifest", "videos", "frames", "features", "training_views", "pseudo_labels", "search"}
STAGES |= {
    "duplicate_pairs",
    "duplicate_groups",
    "watch_matches",
    "watch",
    "marks",
    "models",
    "mlflow",
}


@pytest.fixture(scope="session")
def made(make_once: MakeOnce) -> Path:
    """The folder of a collection whose every stage, index, table, training and store has something
    of VIDEO."""
    return make_once("forgettable", make)


def make(folder: Path) -> None:
    videos = write_collection(folder / "videos")
    write_scenes(videos / f"{MARKER}.mp4", [*LONG[2:], 600, 601])
    write_scenes(folder / "queries" / "leak.mp4", [500, *LONG[8:18], 501])
    settings = folder_settings(videos, folder / "data")
    settings |= {"whitening": {"dims": DIMS, "max_regions": 2000}, "shard_videos": 4}
    lists = [{"name": "leaked", "path": str(folder / "queries"), "min_probability": 0.5}]
    settings["watch"] = {"lists": lists, "webhook": {"url": "http://127.0.0.1:9/nobody"}}
    project = open_project(folder, settings)
    make_feature_data(project)
    register_bundle(project, with_real_weights(bundle_of(project, folder)))
    for name in (
        "training_views",
        "pseudo_labels",
        "frame_descriptors",
        "search_index",
        "duplicate_pairs",
    ):
        run(project, name)

    mark(project.root, VIDEO, "in/long.mp4", "match")
    mark(project.root, "in/short.mp4", "in/other 1.mp4", "not_a_match")
    for name in ("duplicate_groups", "watch_matches"):
        run(project, name)
    searcher = Searcher.open(project)
    file = videos / f"{MARKER}.mp4"
    make_watch_list(project, replace(searcher.read(file), name=file.name), file, max_bytes=10**6)
    with file.open(
        "ab"
    ) as edited:  # as by an edit of its tags: the list knows the digest that it had
        edited.write(b"\0\0\0\x10freehapvr-1.")

    for name in ("videos", "frames"):
        run(project, name)
    add_training(project)


def run(project: Project, name: str) -> None:
    for key in shards_of(project, CHAIN[name]):
        CHAIN[name].run(project, key)


def add_training(project: Project) -> None:
    """Tables as a training and its evaluation write them, in its folder and among the artifacts of
    an MLflow run."""
    folder = project.root.local_path(f"models/{RUN}")
    scores = folder / "benchmarks" / "own-test"
    scores.mkdir(parents=True)
    rows = [(VIDEO, "in/long.mp4", 0.8), ("in/long.mp4", "in/short.mp4", 0.1)]
    table = pl.DataFrame(rows, ["query_id", "reference_id", "similarity"], orient="row")
    write_table(table.to_arrow(), scores / "similarities-trained.parquet")
    tracker = tracker_of(project)
    run_id = tracker.start(RUN, name=RUN, params={}, tags={})
    tracker.client.log_artifact(
        run_id, str(scores / "similarities-trained.parquet"), "benchmarks/own-test"
    )
    tracker.client.delete_run(run_id)


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Project:
    """A copy that a test may change."""
    return copied(made, tmp_path)


def traces(folder: Path, needles: list[bytes]) -> set[str]:
    """Files below a folder with one of these bytes in them, in what they unpack to, or in their
    name."""
    paths = set()
    for path in folder.rglob("*"):
        texts = [path.as_posix().encode()]
        if path.is_file():
            texts.append(path.read_bytes())
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            texts += [repr(table.schema.metadata).encode(), repr(table.to_pylist()).encode()]

        if path.suffix == ".lance" and path.is_dir():
            texts.append(
                repr(lance.dataset(str(path)).to_table(columns=["video_id"]).to_pylist()).encode()
            )

        if any(needle in text for needle in needles for text in texts):
            paths.add(path.relative_to(folder).as_posix())

    return paths


def traits(project: Project) -> list[bytes]:
    """Name and digest of VIDEO, a part of a picture, and a vector, as descriptors and as the index
    store it."""
    metadata = Searcher.open(project).collection.metadata.of(VIDEO)
    (key,) = {
        row["shard"]
        for row in manifest.manifest_table(project.root).to_pylist()
        if row["video_id"] == VIDEO
    }
    jpeg = open_frames(project, key).read(VIDEO).jpegs[-1]
    shard = descriptor_shard(project.root, current_index(project.root).digest, key)
    place = sum(shard.read().places()[VIDEO]) - 1
    vector = shard.open_data().read(["vector"])["vector"][place].as_py()
    wide = np.frombuffer(vector, np.float16).astype(np.float32).tobytes()
    middle = len(jpeg) * 3 // 4
    (row,) = [row for row in project.shard("videos", key).rows() if row["video_id"] == VIDEO]
    digests = [metadata.sha256.encode(), row["former_sha256"].encode()]
    return [MARKER.encode(), *digests, jpeg[middle : middle + 64], vector, wide]


def answers(project: Project) -> dict[str, object]:
    """What a search for each other video finds, and all pairs, without VIDEO; how likely that is
    follows from all candidates. Which videos the network compares together changes the last digits
    of similarities."""
    searcher = Searcher.open(project)
    results: dict[str, object] = {}
    for video_id in sorted({*searcher.collection.video_ids()} - {VIDEO}):
        matches = searcher.search_id(video_id).matches
        results[video_id] = [
            asdict(one)
            | {
                "rank": 0,
                "probability": None,
                "verdict": None,
                "similarity": round(one.similarity, 5),
            }
            for one in matches
            if one.reference != VIDEO
        ]

    pairs = duplicate_pairs(project, searcher, min_probability=0.5)
    results["pairs"] = [
        replace(one, probability=0.0) for one in pairs if VIDEO not in (one.first, one.second)
    ]
    return results


def call(project: Project, *arguments: str, kill_at: int = 0) -> str:
    """`hapvr forget` in a process of its own, which kills itself at its `kill_at`-th write; returns
    what it prints."""
    script = CALL.replace("KILL_AT", str(kill_at))
    command = [
        sys.executable,
        "-c",
        script,
        "forget",
        *arguments,
        "--config",
        str(project.folder / "config.yaml"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert ended.returncode == (-signal.SIGKILL if kill_at else 0), ended.stderr
    return ended.stdout


CALL = """
import os, signal
from hapvr.cli import main
from hapvr.data.filesystem import DataRoot
write, left = DataRoot.write, [KILL_AT]
def counted(*given, **named):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*given, **named)
DataRoot.write = counted
main()
"""
LATE = """
import sys
from pathlib import Path
from hapvr.care.forget import forget, plan_forgetting
from hapvr.steps.project import Project
project, journal = Project.open(Path(sys.argv[1])), Path(sys.argv[2])
aside = journal.rename(journal.with_suffix(".aside"))
planned = plan_forgetting(project, ["in/other 2.mp4"])
aside.rename(journal)
forget(project, planned)
"""


def test_nothing_is_left_of_a_forgotten_video_and_nothing_is_made_again(project: Project) -> None:
    """Names, digests, pictures and vectors are in no file; other videos have their answers, and
    every step is done as before. The user's file stays, and is not listed again."""
    data = project.root.local_path("frames").parent
    wanted = traits(project)
    before = answers(project)
    (shard,) = {
        row["shard"]
        for row in manifest.manifest_table(project.root).to_pylist()
        if row["video_id"] == VIDEO
    }
    assert {name.split("/")[0] for name in traces(data, wanted)} == STAGES
    files = digests(data)
    inspected = project.root.local_path(project.shard("videos", shard).index_name)
    whole = inspected.read_bytes()
    inspected.write_bytes(b"")  # what the file holds, and so what was made of it, is not known
    assert (
        "is damaged"
        in invoke("forget", VIDEO, "--yes", "--config", str(project.folder / "config.yaml")).stderr
    )
    inspected.write_bytes(whole)
    dry = invoke("forget", VIDEO, "--config", str(project.folder / "config.yaml"))
    assert f"{VIDEO}: the file {project.config.sources[0].path}" in dry.stdout
    assert digests(data) == files
    table = project.root.local_path(rows_place("duplicate_pairs", shard))
    with ThreadPoolExecutor(1) as pool, project.root.lock(f"duplicate_pairs/{shard}"):
        row_bytes = table.read_bytes()
        done = pool.submit(call, project, VIDEO, "--yes")
        while len(read_marks(project.root).rows()) > 1 and not done.done():
            time.sleep(0.1)
        time.sleep(1)
        table.write_bytes(row_bytes)  # as a search that began before writes what it found

    done.result()
    assert traces(data, wanted) == set()
    assert answers(project) == before
    assert [sorted(one.names) for one in read_marks(project.root).rows()] == [
        ["in/other 1.mp4", "in/short.mp4"]
    ]
    look = Look(project)
    assert not any(
        CHAIN[name].lacks(look)
        for name in ("videos", "frames", "features", "frame_descriptors", "search_index")
    )
    assert outdated_pairs(project).keys() == {shard}
    assert {one.state for one in verify_root(project.root)} == {"ok"}
    for name in ("video_manifest", "videos", "frames", "whitening", "features"):
        for key in shards_of(project, CHAIN[name]):
            result = CHAIN[name].run(project, key)
            assert not (result.new_shards if name == "video_manifest" else result.done), name

    assert traces(data, wanted) == set()
    assert Path(project.config.sources[0].path, f"{MARKER}.mp4").is_file()
    forgotten = project.root.local_path(manifest.FORGOTTEN)
    forgotten.write_bytes(bytes(forgotten.stat().st_size))
    (check,) = (check for check in verify_root(project.root) if check.state != "ok")
    assert "manifest/forgotten.json" in check.message


def test_a_killed_call_is_finished_by_the_next(project: Project) -> None:
    """Wherever it is killed; nothing is made again, and searches have the same answers."""
    data = project.root.local_path("frames").parent
    wanted = traits(project)
    before = answers(project)
    for kill_at in (8, 11):  # between the data and the index of frames and of features
        call(project, VIDEO, "--yes", kill_at=kill_at)
    call(project, "--yes")
    assert traces(data, wanted) == set()
    assert {one.state for one in verify_root(project.root)} == {"ok"}
    run(project, "duplicate_pairs")
    assert answers(project) == before
    with pytest.raises(ArgumentError, match="there is nothing to forget"):
        plan_forgetting(project, [])


@pytest.mark.parametrize("kill_at", [6, 18])
def test_a_call_that_was_planned_before_another_was_killed_finishes_both(
    project: Project, kill_at: int
) -> None:
    """What was made of a shard that was already written still counts as made of it."""
    data = project.root.local_path("frames").parent
    wanted = traits(project)
    call(project, VIDEO, "--yes", kill_at=kill_at)
    assert "forget_unfinished" in {one.event for one in health(project).concerns}
    command = [
        sys.executable,
        "-c",
        LATE,
        str(project.folder / "config.yaml"),
        str(data / manifest.FORGETTING),
    ]
    subprocess.run(command, check=True, cwd=CHECKOUT)
    assert traces(data, wanted) == set()
    assert {one.state for one in verify_root(project.root)} == {"ok"}
    with pytest.raises(ArgumentError, match="there is nothing to forget"):
        plan_forgetting(project, [])


def test_only_videos_of_the_source_whose_files_are_gone_are_forgotten_and_may_come_back(
    project: Project,
) -> None:
    root = project.root
    gone = "in/other 2.mp4"
    with pytest.raises(ArgumentError, match="nothing to forget"):
        plan_forgetting(project, [], offline="in")
    with pytest.raises(ArgumentError, match="nothing to forget"):
        plan_forgetting(project, [], offline="out")
    with pytest.raises(ArgumentError, match="not a video of the manifest"):
        plan_forgetting(project, ["in/nobody.mp4"])
    for key in manifest.shard_keys(root):
        rows = manifest.read_manifest_shard(root, key)
        moved = [
            replace(row, uri="/nowhere/x.mp4") if row.video_id == gone else row for row in rows
        ]
        manifest.write_manifest_shard(root, key, moved)

    copy = "in/other 3.mp4"
    marked_video = "in/other 4.mp4"
    mark(root, gone, marked_video, "match")
    has_content_of(project, copy, gone)
    mark(
        root, marked_video, "in/other 1.mp4", "match", names=(gone, "in/other 1.mp4")
    )  # its name before it was used again
    earlier = root.local_path(f"search/{'0' * 64}/index-0001")
    shutil.copytree(root.local_path(current_index(root).place), earlier)
    (earlier / "index.json").write_text("{")
    asked = plan_forgetting(project, [], offline="in")
    assert [one.video_id for one in asked] == [gone]
    forget(project, asked)
    assert gone not in Searcher.open(project).collection.video_ids()
    assert not earlier.exists()
    names = [sorted(one.names) for one in read_marks(root).rows()]
    assert [copy, marked_video] in names
    assert ["in/other 1.mp4", marked_video] in names
    (key,) = make_manifest(project).new_shards
    assert [row.video_id for row in manifest.read_manifest_shard(root, key)] == [gone]


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


def test_benchmarks_that_were_made_of_a_forgotten_clip_are_made_again_without_it(
    small_project: Project, tmp_path: Path
) -> None:
    """Copies of a held-out clip, and those that show it with another one, go with it; a whole
    source may become empty."""
    project = copied(small_project.folder, tmp_path)
    root = project.root
    rows = manifest.manifest_table(root).to_pylist()
    held_out = next(row["video_id"] for row in rows if row["source"] == "own-held-out")
    names = [name for name in root.list_folders("corpus") if name in ("own-test", "own-validation")]
    before = {name: load_definition(root.local_path(f"corpus/{name}")) for name in names}
    forget(project, plan_forgetting(project, [held_out]))
    file = held_out.partition("/")[2]
    assert not [path for path in root.local_path("corpus").rglob("*") if path.name.startswith(file)]
    after = {name: load_definition(root.local_path(f"corpus/{name}")) for name in names}
    assert after != before
    manifest_ids = manifest.manifest_table(root)["video_id"].to_pylist()
    assert not [video_id for video_id in manifest_ids if file in video_id]
    for definition in after.values():
        assert set(definition.video_ids) <= set(manifest_ids)
    keys = manifest.collection_keys(root, manifest.shard_keys(root))
    assert not any(manifest.source_of(key) in names for key in keys)


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
