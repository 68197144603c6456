"""The untrained baseline: it answers searches before anything is trained, and a trained model has
to beat it.

It compares frame vectors as the frozen network gives them (TopK-Chamfer similarity, nothing
learned). How sure its answers are ships with a network that was made for copies, since that network
never changes; for other networks it is fitted on edits of the collection's own frames. In a
collection without a registry it is a bundle below `models/`, which the index names by its folder;
elsewhere it is an ordinary version in the registry, and the first champion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hapvr.errors import DataError
from hapvr.files import digest_of
from hapvr.networks.encoder import open_encoder
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.records import count_of
from hapvr.scorer.bundle import read_calibration, read_evidence
from hapvr.scorer.description import CARD_FILE, FORMAT_VERSION, bundle_format
from hapvr.scorer.shipped import shipped_calibration
from hapvr.search.current import serving_index
from hapvr.steps.baseline_bundle import write_baseline
from hapvr.steps.baseline_card import WARNING
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_calibration import MAX_VIDEOS, training_videos

if TYPE_CHECKING:
    from hapvr.registry.champions import Champion
    from hapvr.registry.runs import Tracker

KEY = "untrained"
"""Begins the name of the baseline's folder below `models/`, and of its MLflow run where there is a
registry."""
WHITENING_TAG = "hapvr.baseline.whitening"
VIDEOS_TAG = "hapvr.baseline.videos"


@dataclass(frozen=True)
class Baseline:
    """The baseline that a project's features call for."""

    features: str
    """digest of what determines the features"""
    num_videos: int
    """how many it is fitted on; 0 if nothing is fitted"""

    @property
    def key(self) -> str:
        """Names its folder and its MLflow run."""
        name = f"{KEY}-{self.features[:8]}"
        return f"{name}-{self.num_videos}" if self.num_videos else name

    def replaces(self, other_features: str, other_num_videos: int) -> bool:
        """Whether it is better than a baseline of these features, fitted on so many videos."""
        if other_features != self.features:
            return True
        return self.num_videos > 0 and other_num_videos * 2 <= self.num_videos


def wanted_baseline(project: Project, videos: Mapping[str, str]) -> Baseline:
    """The baseline that a project should have. videos: those that could be fitted on, by id."""
    features = _features_digest(project)
    is_fitted = shipped_calibration(project.config.backbone) is None
    return Baseline(features, min(MAX_VIDEOS, len(videos)) if is_fitted else 0)


def _features_digest(project: Project) -> str:
    """A digest of what determines the features. An imported whitening stays while others change."""
    config = project.config
    return digest_of(
        [
            load_whitening(project.root).sha256,
            config.backbone.model_dump(mode="json"),
            config.sampling.identity_fields(),
        ]
    )


def ensure_baseline(project: Project, *, progress: Progress = no_progress) -> None:
    """Make the untrained baseline of the project's features champion where there is none, or where
    the champion is a baseline of other features or of far fewer videos; a trained champion stays.
    """
    from hapvr.registry.champions import champion_of
    from hapvr.registry.versions import version_tags
    from hapvr.steps.training import tracker_of

    with project.root.lock("baseline"):
        tracker = tracker_of(project)
        name = project.config.tracking.registered_model
        champion = champion_of(tracker.client, name)
        tags: Mapping[str, str] = {}
        if champion is None:
            _require_registry_not_lost(project)
        else:
            tags = version_tags(tracker.client, name, champion.version)

        is_trained = champion is not None and WHITENING_TAG not in tags
        if is_trained:
            return
        videos = training_videos(project)
        wanted = wanted_baseline(project, videos)
        if _serves(tags, wanted):
            return

        encoder = open_encoder(project.config.backbone, project.config.device)
        folder = project.root.local_path(f"models/{wanted.key}")
        bundle = write_baseline(project, folder, encoder, videos, progress)
        version = _register(project, tracker, bundle, wanted, source=encoder.identity.source)
        _promote_over(project, tracker, version, champion)


def _serves(tags: Mapping[str, str], wanted: Baseline) -> bool:
    """Whether a baseline with these tags was promoted, and is as good as the wanted one."""
    from hapvr.registry.champions import SINCE_TAG

    if SINCE_TAG not in tags:
        return False
    num_videos = count_of(tags.get(VIDEOS_TAG)) or 0
    return not wanted.replaces(tags[WHITENING_TAG], num_videos)


def _register(
    project: Project, tracker: Tracker, bundle: Path, wanted: Baseline, *, source: str
) -> int:
    """Register a bundle as a version; returns its number. source: of the backbone's weights."""
    from hapvr.registry.versions import WARNING_TAG, WEIGHTS_TAG, BundleRun, register_bundle

    run = BundleRun(
        key=wanted.key,
        name=f"{project.config.name}-{KEY}",
        params=_run_parameters(project),
        metrics=_run_metrics(bundle),
        tags={
            WEIGHTS_TAG: source,
            WHITENING_TAG: wanted.features,
            VIDEOS_TAG: str(wanted.num_videos),
            WARNING_TAG: WARNING,
        },
    )
    return register_bundle(tracker, project.config.tracking.registered_model, bundle, run)


def _promote_over(
    project: Project, tracker: Tracker, version: int, champion: Champion | None
) -> None:
    """Make a version champion, unless another one has taken the place of `champion`: a training may
    have ended meanwhile."""
    from hapvr.registry.champions import champion_of, promote

    name = project.config.tracking.registered_model
    with project.root.lock("promotion"):
        if champion_of(tracker.client, name) == champion:
            reason = "untrained; nothing better was there"
            promote(tracker.client, name, version, how="baseline", reason=reason)


def _run_parameters(project: Project) -> dict[str, Any]:
    """The settings that decide what the baseline is, for its MLflow run."""
    stored = project.config.stored()
    return {section: stored[section] for section in ("backbone", "whitening", "sampling")}


def _run_metrics(bundle: Path) -> dict[str, float]:
    """What the answers of a bundle rest on and are worth, for its MLflow run: numbers of its
    evidence and of its calibration, where it has them."""
    parts = {"evidence": read_evidence(bundle), "calibration": read_calibration(bundle)}
    names = ("brier", "prior", "num_matches", "num_others")
    numbers = {
        f"{part}/{name}": getattr(values, name)
        for part, values in parts.items()
        if values is not None
        for name in names
    }
    # The Brier score of a calibration that ships was not measured.
    return {name: float(number) for name, number in numbers.items() if number is not None}


def log_baseline_metrics(project: Project, metrics: Mapping[str, float]) -> None:
    """Log metrics of the untrained network to the MLflow run of the newest baseline of the
    project's features; nothing where there is none."""
    from hapvr.steps.training import tracker_of

    tracker = tracker_of(project)
    name = project.config.tracking.registered_model
    features = _features_digest(project)
    versions = tracker.client.search_model_versions(
        f"name = '{name}' and tags.`{WHITENING_TAG}` = '{features}'"
    )
    if versions:
        newest = max(versions, key=lambda version: int(version.version))
        tracker.metrics(str(newest.run_id), metrics)


def local_baseline(project: Project, *, progress: Progress = no_progress) -> Path:
    """The bundle of the untrained baseline, for a collection without a registry; one that was
    fitted is written again where the collection has doubled, and one of an older format. Raises
    MissingPartError for an encoder that needs torch where torch is not installed."""
    with project.root.lock("baseline"):
        videos = training_videos(project)
        wanted = wanted_baseline(project, videos)
        stored = _stored(project, wanted)
        if stored is not None:
            return stored

        encoder = open_encoder(project.config.backbone, project.config.device)
        folder = project.root.local_path(f"models/{wanted.key}")
        return write_baseline(project, folder, encoder, videos, progress)


def stored_baseline(project: Project) -> Path | None:
    """The bundle that `local_baseline` gave before; None where it would write one."""
    if not project.root.list_folders("models"):
        return None
    return _stored(project, wanted_baseline(project, training_videos(project)))


def _stored(project: Project, wanted: Baseline) -> Path | None:
    """A bundle that is as good as the wanted baseline."""
    models = project.root.local_path("models")
    for key in project.root.list_folders("models"):
        begins = f"{KEY}-{wanted.features[:8]}"
        bundle = models / key / "bundle"
        if not key.startswith(begins) or not (bundle / CARD_FILE).is_file():
            continue
        num_videos = key.removeprefix(begins).removeprefix("-") or "0"
        if not num_videos.isdigit() or wanted.replaces(wanted.features, int(num_videos)):
            continue
        if bundle_format(bundle) >= FORMAT_VERSION:
            return bundle

    return None


def has_registry(project: Project) -> bool:
    """Whether the models of a project are in a registry of MLflow: one that is configured, or one
    that something was registered in."""
    return bool(project.config.tracking.uri) or project.root.exists(REGISTRY)


def _require_registry_not_lost(project: Project) -> None:
    """Raise DataError where a registered model answers searches, though the registry has none."""
    serving = serving_index(project.root)
    if serving is not None and serving.model.startswith("models:/"):
        raise DataError(
            f"baseline: the registry has no champion, and searches are answered by "
            f"{serving.model}; restore the registry from a back-up, or name a version with "
            "`hapvr models promote`, or `hapvr index build --model DATA/models/RUN/bundle`"
        )
