"""Everything that is stored below a data root.

`STORES` says how each kind is checked, what rebuilds it, and how it forgets a video. What verifies,
repairs and forgets walks this table, and knows no stage by name.
"""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa

from hapvr.benchmark.definition import load_definition
from hapvr.care import forgetting
from hapvr.care.forgetting import Forget
from hapvr.care.store import Store
from hapvr.chain import CHAIN
from hapvr.data import set_aside
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import (
    FORGETTING,
    FORGOTTEN,
    MANIFEST_STAGE,
    forgotten_digests,
    read_manifest_shard,
    shard_keys,
)
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.demo.files import folder_fingerprint
from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, require_regular
from hapvr.model.checkpoint import WEIGHTS_FILE, read_description, weights_sha256
from hapvr.networks.whitening import (
    PROVENANCE_NAME as WHITENING_NAME,
    load_whitening,
    whitening_provenance,
)
from hapvr.scorer.bundle import load_bundle, read_description as read_bundle_description
from hapvr.search import collection, marks
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE, PAIR_SCHEMA, read_rows
from hapvr.search.kept_answers import kept_jobs, read_answer
from hapvr.settings import SearchSettings
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.duplicates import rows_place
from hapvr.steps.evaluation import StoredScores, make_benchmark_scores
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_index import make_descriptors, update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.sources import CORPUS_FOLDER, resolve_sources
from hapvr.steps.training import CURRENT_NAME, MODELS, current_key, trained_run
from hapvr.steps.videos import DamagedFile, content_digest, damaged_files
from hapvr.steps.watch_lists import SCHEMA as WATCH_SCHEMA
from hapvr.tables import read_frame
from hapvr.train import run_folder


def _check_registry(root: DataRoot, _: str) -> None:
    """The database, and the bundles of versions whose files are beside it."""
    for location in _recorded_locations(root):
        model = re.search(r"/models/(m-[0-9a-f]+)(/|$)", location)
        if model is None:
            continue
        folder = root.local_path(f"mlflow/artifacts/models/{model[1]}")
        bundles = sorted(folder.rglob("artifacts/bundle"))
        is_here = location.startswith(root.local_path("mlflow/artifacts").as_uri())
        if is_here and not bundles:
            raise DamagedError(
                f"tracking: {folder}, which a registered version names, is missing; restore "
                "mlflow/ from one back-up"
            )
        for bundle in bundles:
            read_bundle_description(bundle).require_files(bundle)


def _recorded_locations(root: DataRoot) -> list[str]:
    """Where the registry says that the files of its versions are; none while somebody writes to
    it. Raises DamagedError."""
    database = root.local_path(REGISTRY)
    try:
        require_regular(database)
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            (problem,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            rows = connection.execute("SELECT storage_location FROM model_versions").fetchall()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return []
        problem, rows = str(error), []
    if problem != "ok":
        raise DamagedError(
            f"tracking: {REGISTRY} is damaged ({problem}); restore mlflow/ from one back-up"
        )
    return [location for (location,) in rows if location]


def _check_downloads(root: DataRoot, key: str) -> None:
    if damaged := damaged_files(root, key):
        raise DamagedError(", ".join(f"{one.path} {one.problem}" for one in damaged))


def _remake_downloads(project: Project, key: str) -> None:
    """Fetch or generate damaged videos again, one by one; what cannot be had again stays as it is,
    with the record of its shard."""
    root = project.root
    shard = Shard(root, "videos", key)
    with shard.lock():
        for damaged in damaged_files(root, key):
            with root.open(shard.index_name) as file:
                record = file.read()
            try:
                _fetch_again(project, key, damaged)
            except (DataError, OSError):
                with root.write(shard.index_name) as stream:
                    stream.write(record)
        if lost := damaged_files(root, key):
            hint = "it was left as it is; restore it from a copy, or `hapvr forget` its video"
            raise DataError(f"{lost[0].path} cannot be had again; {hint}")


def _fetch_again(project: Project, key: str, damaged: DamagedFile) -> None:
    """Raises DataError where the file cannot be had again, e.g. a page says that it is gone; then
    it is as it was."""
    root = project.root
    if damaged.path.exists() and not damaged.path.is_file():
        raise DataError(f"{damaged.path} {damaged.problem}; remove it")

    def verify() -> None:
        if damaged.video_id in {one.video_id for one in damaged_files(root, key)}:
            raise DataError(f"{damaged.path} cannot be had again")

    name = damaged.path.relative_to(root.local_path("downloads").parent).as_posix()
    with set_aside.set_aside(root, name, verify=verify):
        _regenerate(project)
        CHAIN["videos"].run(project, key, retry_failed=True, retry_gone=False)


def _regenerate(project: Project, name: str = "") -> None:
    """Make what is missing of the generated videos and benchmarks. name: of a folder whose
    benchmark is made again, too."""
    root = project.root
    with root.lock(MANIFEST_STAGE):
        if not name:
            list(resolve_sources(project))
            return
        benchmark = f"{CORPUS_FOLDER}/{name}/benchmark.json"
        with set_aside.set_aside(root, benchmark, verify=lambda: _check_corpus(root, name)):
            list(resolve_sources(project))


def _check_corpus(root: DataRoot, name: str) -> None:
    folder = root.local_path(f"{CORPUS_FOLDER}/{name}")
    if (folder / "videos").is_dir():
        folder_fingerprint(folder)
    if (folder / "benchmark.json").is_file():
        load_definition(folder)


def _check_training(root: DataRoot, key: str) -> None:
    """The files of a training, which may have come to any point; key "": the file that names the
    latest model."""
    if not key:
        current_key(root)
        return
    folder = root.local_path(f"models/{key}")
    hint = "train again with another run key, or copy it from the run in MLflow"
    if (folder / run_folder.RUN_NAME).is_file():
        run_folder.read_record(folder)
    if (folder / run_folder.RESULT_NAME).is_file():
        ended = read_json_as(folder / run_folder.RESULT_NAME, run_folder.TrainingResult, hint=hint)
        read_description(folder / run_folder.NETWORK)
        if weights_sha256(folder / run_folder.NETWORK) != ended.weights_sha256:
            weights = folder / run_folder.NETWORK / WEIGHTS_FILE
            raise DamagedError(
                f"{weights} does not hold the weights that the training ended with; {hint}"
            )
    elif (folder / run_folder.NETWORK).is_dir():  # of a baseline, or of a training that runs
        read_description(folder / run_folder.NETWORK)
        weights_sha256(folder / run_folder.NETWORK)
    for checkpoint in run_folder.list_checkpoints(folder / run_folder.CHECKPOINTS):
        with suppress(FileNotFoundError):  # a training that runs removes old ones
            run_folder.read_checkpoint(checkpoint)
    if (folder / "bundle").is_dir():
        load_bundle(folder / "bundle")


def _check_scores(root: DataRoot, key: str) -> None:
    run, name = key.split("/")
    folder = root.local_path(f"models/{run}/benchmarks/{name}")
    hint = "evaluate the model again"
    if (folder / "scores.json").is_file():
        read_json_as(folder / "scores.json", StoredScores, hint=hint)
    for table in sorted(folder.glob("*.parquet")):
        with root.corruption_errors(table.name, hint=hint):
            read_frame(table)


def _remake_descriptors(project: Project, key: str) -> None:
    digest, shard = key.split("/")
    serving = collection.serving_index(project.root)
    model = search_model(
        project, serving.model if serving is not None and serving.digest == digest else None
    )
    if model.digest != digest:
        raise DataError(
            "it is of an earlier model; remove its folder, and it is made again when that "
            "one answers"
        )
    made = descriptor_shard(project.root, digest, shard)
    with set_aside.set_aside(project.root, made.index_name, verify=made.verify):
        make_descriptors(project, shard, model)
    if serving is not None and serving.digest == digest:
        with suppress(DamagedError):  # of the index, which is rebuilt next
            update_index(project, model)


def _check_index(root: DataRoot, _: str) -> None:
    current = collection.current_index(root)
    collection.read_blank(root, current.digest)
    index = current.open(root, SearchSettings())
    if problems := index.verify():
        raise DamagedError(f"search: {problems[0]}; `hapvr verify --repair` builds the index again")
    index.recall(probes=1)


def _rebuild_index(project: Project, _: str) -> None:
    serving = collection.serving_index(project.root)
    update_index(
        project, search_model(project, None if serving is None else serving.model), rebuild=True
    )


def _one(*places: str) -> Callable[[DataRoot], list[str]]:
    return lambda root: [""] if any(map(root.exists, places)) else []


def _folders(place: str) -> Callable[[DataRoot], list[str]]:
    return lambda root: root.list_folders(place)


def _shards(name: str, above: str = "") -> Store:
    def remake(project: Project, key: str) -> None:
        if key not in shard_keys(project.root):
            raise DataError(
                f"the manifest lacks it; if it was imported, remove {name}/{key} and import "
                "it again"
            )
        shard, needed = Shard(project.root, name, key), {"videos": "frames", "frames": "features"}

        def usable(stage: str) -> set[str]:
            with suppress(DataError, OSError):  # its index may be what is damaged
                return {
                    row["video_id"]
                    for row in Shard(project.root, stage, key).rows()
                    if row["status"] == STATUS_OK
                }
            return set()

        held = (
            usable(name) | usable(needed[name]) if name in needed else set[str]()
        )  # not to be lost
        # Without its index nothing is taken over from the damaged data.
        names = (shard.data_name, shard.index_name)
        with set_aside.set_aside(project.root, *names, verify=shard.verify):
            CHAIN[name].run(project, key)
            asked = (
                usable("videos") if name == "frames" else {row["video_id"] for row in shard.rows()}
            )  # not given up
            if away := held & asked - usable(name):
                said = (
                    "are not there, or are not those that were read; connect their drive "
                    "or restore them; `hapvr download` gives them up"
                )
                raise DataError(f"{len(away)} of its videos, such as {min(away)}, {said}")

    store = Store(
        keys=_folders(name),
        check=lambda root, key: Shard(root, name, key).verify(),
        remake=remake,
        forget=forgetting.forget_in_stage(name),
    )
    return replace(store, made_from=_shard_made_from(name, above)) if above else store


def _rows(name: str, schema: pa.Schema, forget: Forget) -> Store:
    return Store(
        keys=_folders(name),
        check=lambda root, key: read_rows(root, rows_place(name, key), schema),
        remake=CHAIN[name].run,
        forget=forget,
    )


def _shard_made_from(stage: str, above: str) -> Callable[[DataRoot, str], tuple[object, object]]:
    """Of a stage whose shards are made from those of another, and of the whitening."""

    def made_from(root: DataRoot, key: str) -> tuple[object, object]:
        provenance = Shard(root, stage, key).read().provenance
        source = Shard(root, above, key)
        made = provenance.inputs.get(above)
        if made is None or not root.exists(source.index_name):
            return None, None
        there = frames_digest(source) if above == "frames" else content_digest(source.rows())
        used = provenance.settings.get("whitening")
        stored = used
        if used and root.exists(WHITENING_NAME):
            stored = load_whitening(root).sha256
        return (made, used), (there, stored)

    return made_from


def _index_made_from(root: DataRoot, _: str) -> tuple[object, object]:
    serving = collection.serving_index(root)
    if serving is None:
        return None, None
    held = serving.shards(root)
    there = {key: descriptor_shard(root, serving.digest, key).read().data_sha256 for key in held}
    return held, there


def _descriptors_made_from(root: DataRoot, key: str) -> tuple[object, object]:
    serving = collection.serving_index(root)
    digest, shard = key.split("/")
    if serving is None or serving.digest != digest:
        return None, None
    inputs = descriptor_shard(root, digest, shard).read().provenance.inputs
    return inputs["features"], Shard(root, FEATURES_STAGE, shard).digest()


def _score_keys(root: DataRoot) -> list[str]:
    keys = []
    for run in root.list_folders(MODELS):
        keys += [f"{run}/{name}" for name in root.list_folders(f"{MODELS}/{run}/benchmarks")]
    return keys


def _descriptor_keys(root: DataRoot) -> list[str]:
    keys = []
    for digest in root.list_folders(collection.FOLDER):
        stage = descriptor_shard(root, digest, "").stage
        keys += [f"{digest}/{key}" for key in root.list_folders(stage)]
    return keys


ONLY_RECORD = (
    "Restore it from a copy: it is the only record of what people said and of what was sent"
)
STORES: dict[str, Store] = {
    "corpus": Store(
        keys=_folders(CORPUS_FOLDER),
        check=_check_corpus,
        remake=_regenerate,
        forget=forgetting.forget_generated,
    ),
    "video_manifest": Store(
        keys=lambda root: sorted({*shard_keys(root), *root.list_folders("videos")}),
        check=read_manifest_shard,
        forget=forgetting.forget_in_manifest,
        advice="Restore the manifest from a copy: it is the only record of its videos",
    ),
    "forgotten": Store(
        keys=_one(FORGOTTEN, FORGETTING),
        check=lambda root, _: (forgotten_digests(root), forgetting.read_journal(root)),
    ),
    "videos": _shards("videos"),
    "downloads": Store(
        keys=_folders("videos"),
        check=_check_downloads,
        remake=_remake_downloads,
        forget=forgetting.forget_fetched_files,
    ),
    "frames": _shards("frames", "videos"),
    "whitening": Store(
        keys=lambda root: [""] if root.list_files("whitening") else [],
        check=lambda root, _: (whitening_provenance(root), load_whitening(root)),
        remake=CHAIN["whitening"].run,
        forget=forgetting.rename_in_whitening,
    ),
    "features": _shards("features", "frames"),
    "training_views": _shards("training_views"),
    "pseudo_labels": _shards("pseudo_labels"),
    "models": Store(
        keys=lambda root: [*_one(CURRENT_NAME)(root), *root.list_folders(MODELS)],
        check=_check_training,
        advice="Nothing here can be made again; a training resumes from its newest "
        "checkpoint that can be read",
    ),
    "benchmark_scores": Store(
        keys=_score_keys,
        check=_check_scores,
        remake=lambda project, key: make_benchmark_scores(
            project, trained_run(project, key.split("/")[0]), key.split("/")[1]
        ),
    ),
    "descriptors": Store(
        keys=_descriptor_keys,
        check=lambda root, key: descriptor_shard(root, *key.split("/")).verify(),
        remake=_remake_descriptors,
        made_from=_descriptors_made_from,
        forget=forgetting.forget_descriptors,
    ),
    "search_index": Store(
        keys=_one(collection.CURRENT),
        check=_check_index,
        remake=_rebuild_index,
        made_from=_index_made_from,
        forget=forgetting.forget_in_indexes,
    ),
    "answers": Store(
        keys=kept_jobs,
        check=read_answer,
        forget=forgetting.forget_in_answers,
        advice="Remove the file; the search can be made again",
    ),
    "marks": Store(
        keys=_one(marks.PLACE),
        check=lambda root, _: marks.read_marks(root),
        forget=forgetting.forget_in_marks,
        advice=ONLY_RECORD,
    ),
    "duplicate_pairs": _rows(
        "duplicate_pairs", PAIR_SCHEMA, forgetting.forget_in_rows("duplicate_pairs")
    ),
    "duplicate_groups": Store(
        keys=_one(GROUPS_PLACE),
        check=lambda root, _: read_rows(root, GROUPS_PLACE, GROUP_SCHEMA),
        remake=CHAIN["duplicate_groups"].run,
        forget=forgetting.forget_in_groups,
    ),
    "watch_matches": _rows("watch_matches", WATCH_SCHEMA, forgetting.forget_in_watch_lists),
    "outbox": Store(
        keys=_one(OUTBOX_PLACE),
        check=lambda root, _: AlertOutbox(root).check(),
        forget=forgetting.forget_in_outbox,
        advice=ONLY_RECORD,
    ),
    "registry": Store(
        keys=_one(REGISTRY, "mlflow/artifacts/models"),
        check=_check_registry,
        forget=forgetting.forget_in_trainings,  # of scores in its runs, and in our own folders
    ),
}
"""Everything that the chain stores, in its order, in which it is repaired and forgotten."""
