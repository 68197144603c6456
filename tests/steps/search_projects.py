"""Small collections that can be indexed and searched, by the real stages, and networks that stand
for champions."""

import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hapvr.data.features import FeatureStore
from hapvr.data.manifest import (
    VIDEO_COLUMNS,
    VIDEOS_STAGE,
    read_manifest_shard,
    shard_keys,
    write_manifest_shard,
)
from hapvr.data.shards import Shard
from hapvr.model.checkpoint import load_network, save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import load_whitening
from hapvr.registry.champions import promote
from hapvr.registry.versions import register
from hapvr.scorer.bundle_writer import BundleParts, complete_bundle, write_bundle
from hapvr.scorer.calibration import Calibration, fit_calibration
from hapvr.scorer.description import SCORER_FILE
from hapvr.scorer.evidence import EvidenceModel, fit_evidence
from hapvr.scorer.evidence_kinds import KINDS, names
from hapvr.scorer.torch_networks import write_onnx
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.training import tracker_of
from tests.conftest import small_settings
from tests.made_data import make_feature_data
from tests.registry.empty_store import new_store
from tests.scorer.bundles import write_scenes
from tests.steps.data_projects import folder_settings, open_project

DIMS = 32
LONG = range(100, 140)
"""Pictures of long.mp4, a second each."""
STEPS = [step / 100 for step in range(20)]
SURE = fit_calibration(
    [0.7 + step for step in STEPS] * 20,
    [0.1 + step for step in STEPS] * 80,
    source={},
    frame_threshold=0.6,
)
"""As if matches had similarities about 0.8, others about 0.2; the threshold of segments lies
between."""


def write_collection(folder: Path) -> Path:
    """long: 40 pictures; part: 12 of them within others; copy: those of short; others: their
    own."""
    write_scenes(folder / "long.mp4", list(LONG))
    write_scenes(folder / "trips" / "part.mp4", [200, 201, *range(110, 122), 202, 203])
    write_scenes(folder / "short.mp4", list(range(300, 308)))
    write_scenes(folder / "trips" / "copy of short.mp4", list(range(300, 308)), fps=5)
    for number in range(5):
        write_scenes(
            folder / f"other {number}.mp4", list(range(400 + 20 * number, 410 + 20 * number))
        )

    return folder


def evidence() -> EvidenceModel:
    """As if two frames in a row were alike by about 0.8 for matches and 0.2 for others, and matches
    were found by the whole picture, while votes were those of all."""
    rng = numpy_rng(0, "evidence")
    is_match = np.arange(20) % 4 == 0
    searches = []
    for _ in range(500):  # typical weights count for little then
        features = np.zeros((20, len(KINDS)))
        features[:, names().index("frame_run")] = np.where(is_match, 0.8, 0.2) + rng.uniform(
            -0.1, 0.1, 20
        )
        features[:, names().index("whole_picture")] = rng.integers(2, size=20) | is_match
        searches.append((features[None], is_match))

    return fit_evidence(
        searches,
        [f"video {number}" for number in range(500)],
        num_videos=20,
        source={"benchmark": "made up"},
    )


def network_folder(folder: Path, *, seed: int = 0, settings: NetworkSettings | None = None) -> Path:
    """A similarity network of seeded weights, as `--model` takes it."""
    network = SimilarityNetwork(
        settings or NetworkSettings(), dims=DIMS, generator=torch_rng(seed, "search")
    )
    return save_network(network, folder / f"network-{seed}", metadata={})


def bundle_of(
    project: Project,
    folder: Path,
    *,
    seed: int = 0,
    fitted: Calibration | None = SURE,
    weighed: EvidenceModel | None = None,
    onnx: bool = False,
) -> Path:
    """A bundle for the features of a project; without comparator, and seed 0 without attention, it
    needs no training."""
    settings = NetworkSettings(comparator=False, attention=seed > 0)
    place = network_folder(folder, seed=seed, settings=settings)
    backbone = load_backbone(project.config.backbone)
    whitening = load_whitening(project.root)
    record = None
    if onnx:
        (key, *_) = project.root.list_folders("features")
        store = FeatureStore(project.root, [key])
        record = write_onnx(
            folder / "exported",
            encoder=backbone,
            whitening=whitening,
            network=load_network(place)[0],
            frames=[],
            features=[regions for _, regions in store.read(sorted(store.available())[:2])],
        )

    parts = BundleParts(
        network_folder=place,
        encoder=backbone,
        whitening=whitening,
        sampling=project.config.sampling,
        calibration=fitted,
        onnx=record,
        onnx_folder=folder / "exported" if onnx else None,
    )
    bundle = write_bundle(folder / f"bundle-{seed}", parts)
    complete_bundle(
        bundle, evidence="not fitted" if fitted is None else weighed or evidence(), card=""
    )
    return bundle


def with_real_weights(bundle: Path) -> Path:
    """The bundle, as if the weights of its backbone were not random."""
    file = bundle / SCORER_FILE
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"warning": ""}), encoding="utf-8"
    )
    return bundle


def copied_project(small_project: Project, folder: Path, **search: object) -> Project:
    """A project with the features of `small_project`, in a folder of its own. search: settings of
    that section."""
    source = small_project.root.local
    for stage in ("manifest", "videos", "frames", "whitening", "features"):
        shutil.copytree(source / stage, folder / "data" / stage)
    videos = small_project.path(small_project.config.sources[0].path)
    return open_project(folder, small_settings(videos, folder / "data") | {"search": search})


def searchable_project(folder: Path, *, onnx: bool = False) -> Project:
    """A project in `folder` with an index over the videos of `write_collection`. onnx: its model
    has ONNX files, as registered ones do, so that a process which opens it loads no torch."""
    videos = write_collection(folder / "videos")
    settings = folder_settings(videos, folder / "data")
    settings["whitening"] = {"dims": DIMS, "max_regions": 2000}
    project = open_project(folder, settings)
    make_feature_data(project)
    bundle = bundle_of(project, folder, onnx=onnx)
    update_index(project, search_model(project, str(bundle)))
    return project


def copied(made: Path, folder: Path, *, videos: bool = False, **settings: Any) -> Project:
    """A project in `folder` with the data of `made`, which it may change; with `videos` those, too.
    settings: by dotted key, e.g. `serving.max_bytes`."""
    part = "" if videos else "data"
    shutil.copytree(made / part, folder / part, dirs_exist_ok=True)
    config = folder / "config.yaml"
    text = (
        (made / "config.yaml")
        .read_text(encoding="utf-8")
        .replace(str(made / part), str(folder / part))
    )
    config.write_text(text, encoding="utf-8")
    project = Project.open(config, folder=folder, overrides=settings)
    if videos:
        for key in shard_keys(project.root):
            name_own_videos(project, key, made=made)

    return project


def name_own_videos(project: Project, key: str, *, made: Path) -> None:
    """Let the rows of a shard name the videos of a copied project in place of those of `made`,
    which other tests use at the same time."""
    own = str(project.folder)
    entries = read_manifest_shard(project.root, key)
    moved = [replace(entry, uri=entry.uri.replace(str(made), own)) for entry in entries]
    write_manifest_shard(project.root, key, moved)
    shard = Shard(project.root, VIDEOS_STAGE, key)
    rows = [row | {"path": row["path"].replace(str(made), own)} for row in shard.rows()]
    shard.write_index(rows, provenance=shard.require({}), fields=VIDEO_COLUMNS)


def register_bundle(project: Project, bundle: Path) -> int:
    """A version of the project's registry that is the champion; its number."""
    if not (store := project.root.local_path("mlflow")).exists():
        new_store(store)
    tracker = tracker_of(project)
    run = tracker.start(secrets.token_hex(8), name="run", params={}, tags={})
    name = project.config.tracking.registered_model
    source = bundle.as_uri()
    version = register(tracker, name, run_id=run, model_uri=source, target=0.5, tags={})
    promote(tracker.client, name, version, reason="the newest")
    return version
