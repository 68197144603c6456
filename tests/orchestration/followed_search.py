"""A project with features whose champions, marks and watch lists change, and what is asked for and
made after each change."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from hapvr.data.features import collection_shards
from hapvr.registry.champions import rollback
from hapvr.scorer.calibration import Calibration, fit_calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.evidence_kinds import names
from hapvr.search.current import CurrentIndex, current_index
from hapvr.search.marks import mark
from hapvr.steps.project import Project
from hapvr.steps.search_model import search_model
from hapvr.steps.training import tracker_of
from tests.conftest import write_settings
from tests.orchestration.conftest import Storage, materialize, requested
from tests.registry.empty_store import new_store
from tests.steps.search_projects import (
    bundle_of,
    copied_project,
    register_bundle,
    with_real_weights,
)

ZEROS = dict.fromkeys(names(), 0.0)
TENS = dict.fromkeys(("num_matches", "num_others", "num_groups"), 10)
SURE = EvidenceModel(weights=ZEROS, intercept=9.0, prior=0.5, brier=0.0, **TENS)
PARTITIONED = ("frame_descriptors", "duplicate_pairs", "watch_matches")
SEARCH_STEPS = (
    "frame_descriptors",
    "search_index",
    "duplicate_pairs",
    "duplicate_groups",
    "watch_matches",
)
BENCHMARK_SHARD = "own-test-00000"
"""Of videos that the collection leaves out."""

Asked = Mapping[str, list[str]]
"""What the automation asks for: partitions by asset, [""] of one without partitions."""
Shown = Mapping[str, object]
"""The metadata of a materialisation."""


@dataclass(frozen=True)
class Followed:
    """A project, and an instance that knows its shards."""

    project: Project
    instance: dg.DagsterInstance

    @property
    def shards(self) -> list[str]:
        """Those of the collection."""
        return list(collection_shards(self.project.root)[0])

    def configure(self, **sections: Mapping[str, object]) -> None:
        """Write the configuration with these values in its sections."""
        settings: dict[str, Any] = self.project.config.model_dump(mode="json")
        for section, values in sections.items():
            settings[section] |= values
        write_settings(self.project.folder / "config.yaml", settings)

    def crown(self, *, seed: int, fitted: Calibration | None = None) -> None:
        """One more version of the project's model, with a network of this seed, is the champion."""
        bundle = bundle_of(
            self.project, self.project.folder, seed=seed, fitted=fitted, weighed=SURE
        )
        register_bundle(self.project, with_real_weights(bundle))

    def asked(self) -> Asked:
        """What the automation asks for now."""
        result = requested(self.instance)
        wanted = {}
        for step in SEARCH_STEPS:
            key = dg.AssetKey(step)
            if result.get_num_requested(key):
                is_partitioned = step in PARTITIONED
                partitions = result.get_requested_partitions(key) if is_partitioned else [""]
                wanted[step] = sorted(partitions)

        return wanted

    def make(self, asset: str, *shards: str) -> None:
        """Make an asset; of a partitioned one, these shards."""
        for shard in shards or (None,):
            assert materialize(self.instance, asset, shard=shard).success

    def shown(self, asset: str) -> Shown:
        """The metadata of the last materialisation."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(asset))
        return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}

    def passed(self, asset: str, name: str) -> bool:
        """The last result of a check."""
        key = dg.AssetCheckKey(dg.AssetKey(asset), name)
        history = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        return history[0].status.value == "SUCCEEDED"

    def widest_pair(self) -> tuple[str, str]:
        """The two videos of the stored pairs that show most of each other."""
        root = self.project.root
        tables = [
            pl.read_parquet(root.local_path(f"duplicate_pairs/{key}/rows.parquet"))
            for key in self.shards
        ]
        shown_of_both = pl.min_horizontal("first_covered", "second_covered")
        widest = pl.concat(tables).sort(shown_of_both, descending=True).row(0, named=True)
        return widest["first"], widest["second"]


@contextmanager
def followed(small_project: Project, folder: Path) -> Iterator[Followed]:
    """A copy of a project's features in a folder, with an empty registry."""
    project = copied_project(small_project, folder)
    new_store(folder / "data" / "mlflow")
    with Storage().instance(folder, folder / "config.yaml") as instance:
        instance.add_dynamic_partitions("shards", project.root.list_folders("features"))
        yield Followed(project, instance)


@dataclass(frozen=True)
class FirstChampion:
    """A champion where there was none."""

    asked_before: Asked
    asked: Asked
    asked_of_descriptors: Asked
    """once all descriptors were made"""
    asked_of_index: Asked
    """once the index was made, too"""
    shown: Shown
    """of the index"""
    is_recall_good: bool
    index: CurrentIndex


def first_champion(search: Followed) -> FirstChampion:
    asked_before = search.asked()
    search.crown(seed=0)
    asked = search.asked()
    search.make("frame_descriptors", *search.shards)
    asked_of_descriptors = search.asked()
    search.make("search_index")
    return FirstChampion(
        asked_before,
        asked,
        asked_of_descriptors,
        asked_of_index=search.asked(),
        shown=search.shown("search_index"),
        is_recall_good=search.passed("search_index", "recall"),
        index=current_index(search.project.root),
    )


@dataclass(frozen=True)
class NextChampion:
    """Another one, and a rollback to the first."""

    index_before: CurrentIndex
    """once there was another champion, and before anything was made"""
    asked: Asked
    index: CurrentIndex
    """once the index alone was asked for"""
    digest_of_rollback: str
    """of the model that is searched with after a rollback"""
    asked_of_rollback: Asked
    index_of_rollback: CurrentIndex
    asked_at_end: Asked


def next_champion(search: Followed) -> NextChampion:
    root = search.project.root
    search.crown(seed=1)
    index_before = current_index(root)
    asked = search.asked()
    search.make("search_index")
    index = current_index(root)
    rollback(tracker_of(search.project).client, "hapvr", reason="back")
    digest_of_rollback = search_model(search.project).digest
    asked_of_rollback = search.asked()
    search.make("search_index")
    return NextChampion(
        index_before,
        asked,
        index,
        digest_of_rollback,
        asked_of_rollback,
        index_of_rollback=current_index(root),
        asked_at_end=search.asked(),
    )


@dataclass(frozen=True)
class Uncalibrated:
    """Duplicates are wanted by a model that was fitted on no searches."""

    asked: Asked
    reasons_of_benchmark: Mapping[str, str]
    """by asset: why nothing is made of a benchmark's shard"""
    reason: str
    """why no pairs are made of the first shard"""
    is_calibrated: bool
    """the check of pairs"""


def uncalibrated(search: Followed) -> Uncalibrated:
    search.configure(automation={"duplicates": True})
    asked = search.asked()
    reasons = {}
    for asset in ("frame_descriptors", "duplicate_pairs"):
        search.make(asset, BENCHMARK_SHARD)
        reasons[asset] = str(search.shown(asset)["reason"])

    search.make("duplicate_pairs", search.shards[0])
    reason = str(search.shown("duplicate_pairs")["reason"])
    return Uncalibrated(asked, reasons, reason, search.passed("duplicate_pairs", "calibrated"))


@dataclass(frozen=True)
class Duplicates:
    """A calibrated champion; then somebody marks two videos as a match."""

    shown_of_all_but_last: frozenset[str]
    """names of what the pairs of all shards but the last one show"""
    were_all_compared: bool
    """the check of groups that are made before the last shard"""
    asked_of_the_last: Asked
    shown_of_last: Shown
    is_calibrated: bool
    asked_of_mark: Asked
    are_all_compared: bool
    """the check of groups after the last shard"""
    groups: Shown
    asked_at_end: Asked


def duplicates(search: Followed) -> Duplicates:
    search.crown(seed=1, fitted=sure_of_all())
    search.make("search_index")
    *others, last = search.shards
    shown: set[str] = set()
    for shard in others:
        search.make("duplicate_pairs", shard)
        shown |= search.shown("duplicate_pairs").keys()

    search.make("duplicate_groups")
    were_all_compared = search.passed("duplicate_groups", "all_shards_compared")
    asked_of_the_last = search.asked()
    search.make("duplicate_pairs", last)
    shown_of_last = search.shown("duplicate_pairs")
    # Strangers look alike to the network, and have not the same course; only people can say that
    # two are copies.
    mark(search.project.root, *search.widest_pair(), "match")
    asked_of_mark = search.asked()
    search.make("duplicate_groups")
    return Duplicates(
        frozenset(shown),
        were_all_compared,
        asked_of_the_last,
        shown_of_last,
        is_calibrated=search.passed("duplicate_pairs", "calibrated"),
        asked_of_mark=asked_of_mark,
        are_all_compared=search.passed("duplicate_groups", "all_shards_compared"),
        groups=search.shown("duplicate_groups"),
        asked_at_end=search.asked(),
    )


@dataclass(frozen=True)
class Watched:
    """A watch list of a clip of the collection and a file that is no video, with a webhook that is
    away; then that file is removed."""

    asked: Asked
    shown: Shown
    are_queries_usable: bool
    are_alerts_delivered: bool
    asked_of_removal: Asked
    are_others_usable: bool
    """without the file that is no video"""
    asked_at_end: Asked


def watched(search: Followed, clips: Path) -> Watched:
    folder = search.project.folder / "watched"
    folder.mkdir()
    for name in ("clip 01.mp4", "text.mp4"):
        shutil.copy(clips / name, folder / name)

    leaked = {"name": "leaked", "path": str(folder), "min_probability": 0.5}
    webhook = {"url": "http://127.0.0.1:9/nobody"}
    search.configure(automation={"duplicates": True}, watch={"lists": [leaked], "webhook": webhook})
    asked = search.asked()
    search.make("watch_matches", *search.shards)
    shown = search.shown("watch_matches")
    are_queries_usable = search.passed("watch_matches", "queries_usable")
    are_alerts_delivered = search.passed("watch_matches", "alerts_delivered")
    (folder / "text.mp4").unlink()
    asked_of_removal = search.asked()
    search.make("watch_matches", *search.shards)
    return Watched(
        asked,
        shown,
        are_queries_usable,
        are_alerts_delivered,
        asked_of_removal,
        are_others_usable=search.passed("watch_matches", "queries_usable"),
        asked_at_end=search.asked(),
    )


def sure_of_all() -> Calibration:
    """As if all other pairs had similarities about -0.9, so that a network of random weights finds
    pairs and copies."""
    steps = [step / 100 for step in range(20)]
    matches = [-0.7 + step for step in steps]
    others = [-0.99 + step for step in steps]
    return fit_calibration(matches, others, source={}, frame_threshold=-0.9)


@dataclass(frozen=True)
class Record:
    """What was seen at each change."""

    shards: list[str]
    first_champion: FirstChampion
    next_champion: NextChampion
    uncalibrated: Uncalibrated
    duplicates: Duplicates
    watched: Watched


def lived(search: Followed, clips: Path) -> Record:
    """Let the changes follow one another."""
    return Record(
        search.shards,
        first_champion(search),
        next_champion(search),
        uncalibrated(search),
        duplicates(search),
        watched(search, clips),
    )
