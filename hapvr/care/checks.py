"""How each kind of stored data is checked, and what it was made from."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import frames_digest
from hapvr.data.shards import Shard
from hapvr.demo.files import folder_fingerprint
from hapvr.errors import DamagedError, MissingPartError
from hapvr.files import read_json_as, require_regular
from hapvr.model.checkpoint import WEIGHTS_FILE, read_description, weights_sha256
from hapvr.networks.whitening import PROVENANCE_NAME as WHITENING_NAME, load_whitening
from hapvr.registry.records import is_place
from hapvr.scorer.bundle import load_bundle, read_calibration, read_evidence
from hapvr.scorer.description import (
    NETWORK_FOLDER,
    read_description as read_bundle_description,
)
from hapvr.scorer.open_bundle import stored_network_digest
from hapvr.search.blank_file import read_blank
from hapvr.search.current import CURRENT, SEARCH_FOLDER, current_index, serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.video_index import open_videos
from hapvr.settings import SearchSettings
from hapvr.steps.damaged_files import damaged_files
from hapvr.steps.model_places import current_key
from hapvr.steps.project import REGISTRY
from hapvr.steps.sources import CORPUS_FOLDER
from hapvr.steps.videos import content_digest
from hapvr.tables import read_frame
from hapvr.train.run_names import CHECKPOINTS, NETWORK, RESULT_NAME, RUN_NAME

_LOCATIONS = """
SELECT COALESCE(NULLIF(storage_location, ''), source)
FROM model_versions
WHERE current_stage != 'Deleted_Internal'
"""
"""Where the files of each version are; MLflow keeps the rows of versions that were deleted."""

_LOST_ALIASES = """
SELECT name, alias, version
FROM registered_model_aliases AS aliases
WHERE NOT EXISTS (
    SELECT 1 FROM model_versions AS versions
    WHERE versions.name = aliases.name AND versions.version = aliases.version
    AND versions.current_stage != 'Deleted_Internal'
)
"""
"""Aliases of versions that are gone; MLflow deletes those of a version with it."""


def check_registry(root: DataRoot, _: str) -> None:
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
            rows = connection.execute(_LOCATIONS).fetchall()
            lost_alias = connection.execute(_LOST_ALIASES).fetchone()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            return []
        problem = str(error)
        rows = []
        lost_alias = None

    if problem != "ok":
        raise DamagedError(
            f"tracking: {REGISTRY} is damaged ({problem}); restore mlflow/ from one back-up"
        )
    if lost_alias is not None:
        name, alias, version = lost_alias
        raise DamagedError(
            f"tracking: in {REGISTRY} the alias {alias} of {name} names version {version!r:.80}, "
            "which is gone; restore mlflow/ from one back-up, or promote another version"
        )

    locations = [location for (location,) in rows]
    for location in locations:
        if not is_place(location):
            raise DamagedError(
                f"tracking: {REGISTRY} names no place of a version's files ({location!r:.80}); "
                "restore mlflow/ from one back-up"
            )

    return locations


def check_downloads(root: DataRoot, key: str) -> None:
    """The files of a shard that we fetched or generated."""
    damaged = damaged_files(root, key)
    if damaged:
        raise DamagedError(", ".join(f"{file.path} {file.problem}" for file in damaged))


def check_corpus(root: DataRoot, name: str) -> None:
    """The generated videos, and the benchmark, of a folder."""
    folder = root.local_path(f"{CORPUS_FOLDER}/{name}")
    if (folder / "videos").is_dir():
        folder_fingerprint(folder)
    if (folder / "benchmark.json").is_file():
        from hapvr.benchmark.definition import load_definition

        load_definition(folder)


def check_training(root: DataRoot, key: str) -> None:
    """The files of a training, however far it has come. key: "" for the file that names the latest
    model."""
    if not key:
        current_key(root)
        return

    folder = root.local_path(f"models/{key}")
    if (folder / RUN_NAME).is_file():
        _check_run(folder)
    _check_network(folder)
    if (folder / "bundle").is_dir():
        try:
            load_bundle(folder / "bundle")
        except MissingPartError:  # it cannot be used here; its files may be whole all the same
            _check_bundle_files(folder / "bundle")


def _check_bundle_files(bundle: Path) -> None:
    """The records and the weights of a bundle that this installation cannot use."""
    read_bundle_description(bundle)
    stored_network_digest(bundle / NETWORK_FOLDER)
    read_evidence(bundle)
    read_calibration(bundle)


def _check_run(folder: Path) -> None:
    """The record and the checkpoints of a training."""
    from hapvr.train import run_folder

    run_folder.read_record(folder)
    for checkpoint in run_folder.list_checkpoints(folder / CHECKPOINTS):
        with suppress(FileNotFoundError):  # a running training removes old ones
            run_folder.read_checkpoint(checkpoint)


def _check_network(folder: Path) -> None:
    """The network in the folder of a baseline or a training; a running training may have none
    yet."""
    hint = "train again with another run key, or copy it from the run in MLflow"
    network = folder / NETWORK
    result = None
    if (folder / RESULT_NAME).is_file():
        from hapvr.train.run_folder import TrainingResult

        result = read_json_as(folder / RESULT_NAME, TrainingResult, hint=hint)

    if result is None and not network.is_dir():
        return
    read_description(network)
    digest = weights_sha256(network)
    if result is not None and digest != result.weights_sha256:
        raise DamagedError(
            f"{network / WEIGHTS_FILE} does not hold the weights that the training ended with; "
            f"{hint}"
        )


def check_scores(root: DataRoot, key: str) -> None:
    """Metrics and similarities of a trained model. key: run / benchmark."""
    from hapvr.steps.evaluation import StoredScores

    run, name = key.split("/")
    folder = root.local_path(f"models/{run}/benchmarks/{name}")
    hint = "evaluate the model again"
    if (folder / "scores.json").is_file():
        read_json_as(folder / "scores.json", StoredScores, hint=hint)
    for table in sorted(folder.glob("*.parquet")):
        with root.corruption_errors(table.name, hint=hint):
            read_frame(table)


def check_index(root: DataRoot, _: str) -> None:
    """The index that answers searches, and whether it finds the vectors that it holds."""
    _require_current(root)
    current = current_index(root)
    read_blank(root, current.digest)
    indexes = [current.open(root, SearchSettings())]
    videos = open_videos(root, current.place, SearchSettings().index)
    if videos is not None:
        indexes.append(videos)
    for index in indexes:
        problems = index.verify()
        if problems:
            raise DamagedError(
                f"search: {problems[0]}; `hapvr verify --repair` builds the index again"
            )

        index.recall(probes=1)


def _require_current(root: DataRoot) -> None:
    """Raise DamagedError where there is an index, but no record says which one answers. The record
    is written last, so an index that is still being built is no damage."""
    if root.exists(CURRENT):
        return
    waiting = root.lock(SEARCH_FOLDER) if root.is_writable() else nullcontext()
    with waiting:
        if not root.exists(CURRENT):
            raise DamagedError(
                f"search: {CURRENT}, which says which index answers, is missing; `hapvr "
                "index add` or `hapvr verify --repair` writes it again"
            )


def shard_made_from(stage: str, above: str) -> Callable[[DataRoot, str], tuple[object, object]]:
    """What the shards of a stage were made from: those of another stage, and the whitening."""

    def made_from(root: DataRoot, key: str) -> tuple[object, object]:
        provenance = Shard(root, stage, key).read().provenance
        source = Shard(root, above, key)
        source_then = provenance.inputs.get(above)
        if source_then is None or not root.exists(source.index_name):
            return None, None
        source_now = frames_digest(source) if above == "frames" else content_digest(source.rows())
        whitening_then = provenance.settings.get("whitening")
        whitening_now = whitening_then
        if whitening_then and root.exists(WHITENING_NAME):
            whitening_now = load_whitening(root).sha256
        return (source_then, whitening_then), (source_now, whitening_now)

    return made_from


def index_made_from(root: DataRoot, _: str) -> tuple[object, object]:
    """Digests of the shards that the index has, and of those that there are."""
    serving = serving_index(root)
    if serving is None:
        return None, None
    held = serving.shards(root)
    there = {key: descriptor_shard(root, serving.digest, key).read().data_sha256 for key in held}
    return held, there


def descriptors_made_from(root: DataRoot, key: str) -> tuple[object, object]:
    """What descriptors of the network that answers searches were made from. key: digest of the
    network / shard."""
    serving = serving_index(root)
    digest, shard = key.split("/")
    if serving is None or serving.digest != digest:
        return None, None
    inputs = descriptor_shard(root, digest, shard).read().provenance.inputs
    return inputs["features"], Shard(root, FEATURES_STAGE, shard).digest()
