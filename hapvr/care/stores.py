"""Everything that is stored below a data root.

`STORES` says how each kind is checked, what rebuilds it, and how it forgets a video. Verify, repair
and forget walk this table, and know no stage by name.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import pyarrow as pa

from hapvr.care.checks import (
    check_corpus,
    check_downloads,
    check_index,
    check_registry,
    check_scores,
    check_training,
    descriptors_made_from,
    index_made_from,
    shard_made_from,
)
from hapvr.care.forget_rows import (
    forget_fetched_files,
    forget_generated,
    forget_in_answers,
    forget_in_groups,
    forget_in_marks,
    forget_in_outbox,
    forget_in_rows,
    forget_in_trainings,
    forget_in_watch_lists,
)
from hapvr.care.forget_shards import (
    forget_descriptors,
    forget_in_indexes,
    forget_in_manifest,
    forget_in_stage,
    rename_in_whitening,
)
from hapvr.care.forgetting import DIGESTS, Forget, read_journal
from hapvr.care.remakes import (
    rebuild_index,
    regenerate,
    remake_descriptors,
    remake_downloads,
    remake_scores,
    remake_shard,
)
from hapvr.care.store import Store
from hapvr.chain import CHAIN
from hapvr.chain.step import ShardStep, Step
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import (
    FORGETTING,
    FORGOTTEN,
    IDENTITY,
    MANIFEST_STAGE,
    PLANNED,
    forgotten_digests,
    planned_moves,
    read_manifest_shard,
    shard_keys,
)
from hapvr.data.shards import Shard
from hapvr.data.stamped import read_rows
from hapvr.networks.whitening import load_whitening, whitening_provenance
from hapvr.search import marks
from hapvr.search.current import CURRENT, SEARCH_FOLDER, index_places
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE, PAIR_SCHEMA
from hapvr.search.kept_answers import kept_jobs, read_answer
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.copy_measures import PICTURES_PLACE, PICTURES_SCHEMA
from hapvr.steps.fetching import DOWNLOAD_FOLDER
from hapvr.steps.model_places import CURRENT_NAME, MODELS
from hapvr.steps.project import REGISTRY
from hapvr.steps.shard_rows import rows_place
from hapvr.steps.sources import CORPUS_FOLDER
from hapvr.steps.watch_lists import SCHEMA as WATCH_SCHEMA
from hapvr.steps.watch_queries import LISTS, check_watch_list


def _single(*places: str) -> Callable[[DataRoot], list[str]]:
    """The key "" where one of these files exists."""
    return lambda root: [""] if any(map(root.exists, places)) else []


def _folders(place: str) -> Callable[[DataRoot], list[str]]:
    return lambda root: root.list_folders(place)


def _shards(stage: str, above: str = "") -> Store:
    """The store of a stage's shards. above: the stage that its shards are made from, where they
    record it."""
    store = Store(
        keys=_folders(stage),
        places=[f"{stage}/*"],
        check=lambda root, key: Shard(root, stage, key).verify(),
        remake=lambda project, key: remake_shard(project, stage, key),
        forget=forget_in_stage(stage),
    )
    return replace(store, made_from=shard_made_from(stage, above)) if above else store


def shard_stores(steps: Iterable[Step], *, besides: Collection[str]) -> dict[str, Store]:
    """A store for each step that keeps shards with a row per video.

    besides: steps that have a store of their own, since more is known of what they are made from
    """
    return {
        step.name: _shards(step.name)
        for step in steps
        if isinstance(step, ShardStep) and step.name not in besides
    }


def _rows(name: str, schema: pa.Schema, forget: Forget) -> Store:
    return Store(
        keys=_folders(name),
        places=[f"{name}/*"],
        check=lambda root, key: read_rows(root, rows_place(name, key), schema),
        remake=CHAIN[name].run,
        forget=forget,
    )


def _check_groups(root: DataRoot, _: str) -> None:
    """The groups, and what was measured of copies."""
    read_rows(root, GROUPS_PLACE, GROUP_SCHEMA)
    read_rows(root, PICTURES_PLACE, PICTURES_SCHEMA)


def _score_keys(root: DataRoot) -> list[str]:
    keys = []
    for run in root.list_folders(MODELS):
        keys += [f"{run}/{name}" for name in root.list_folders(f"{MODELS}/{run}/benchmarks")]
    return keys


def _descriptor_keys(root: DataRoot) -> list[str]:
    keys = []
    for digest in root.list_folders(SEARCH_FOLDER):
        stage = descriptor_shard(root, digest, "").stage
        keys += [f"{digest}/{key}" for key in root.list_folders(stage)]
    return keys


def _index_keys(root: DataRoot) -> list[str]:
    """The key "" where an index answers, or where there is one that should."""
    is_there = root.exists(CURRENT) or bool(index_places(root))
    return [""] if is_there else []


NEW_IDENTITY = "remove it; the next reading of the sources writes another"
ONLY_RECORD = (
    "Restore it from a copy: it is the only record of what people marked and of what was sent"
)
STORES: dict[str, Store] = {
    "corpus": Store(
        keys=_folders(CORPUS_FOLDER),
        places=[f"{CORPUS_FOLDER}/*"],
        check=check_corpus,
        remake=regenerate,
        forget=forget_generated,
    ),
    "video_manifest": Store(
        keys=lambda root: sorted({*shard_keys(root), *root.list_folders("videos")}),
        places=[f"{MANIFEST_STAGE}/*"],
        check=read_manifest_shard,
        forget=forget_in_manifest,
        advice="Restore the manifest from a copy: it is the only record of its videos",
    ),
    "forgotten": Store(
        keys=_single(FORGOTTEN, FORGETTING),
        places=[FORGOTTEN, FORGETTING, DIGESTS],
        check=lambda root, _: (forgotten_digests(root), read_journal(root)),
    ),
    "identity": Store(
        keys=_single(IDENTITY),
        places=[IDENTITY],
        check=lambda root, _: root.read_json_as(IDENTITY, dict[str, str], hint=NEW_IDENTITY),
        advice=f"Without a copy, {NEW_IDENTITY}",
    ),
    "videos": _shards("videos"),
    "downloads": Store(
        keys=_folders("videos"),
        places=[f"{DOWNLOAD_FOLDER}/*"],
        check=check_downloads,
        remake=remake_downloads,
        forget=forget_fetched_files,
    ),
    "frames": _shards("frames", "videos"),
    "whitening": Store(
        keys=lambda root: [""] if root.list_files("whitening") else [],
        places=["whitening"],
        check=lambda root, _: (whitening_provenance(root), load_whitening(root)),
        remake=CHAIN["whitening"].run,
        forget=rename_in_whitening,
    ),
    "features": _shards("features", "frames"),
    **shard_stores(CHAIN.values(), besides=("videos", "frames", "features")),
    "models": Store(
        keys=lambda root: _single(CURRENT_NAME)(root) + root.list_folders(MODELS),
        places=[CURRENT_NAME, f"{MODELS}/*"],
        check=check_training,
        advice="Nothing here can be rebuilt; a training resumes from its newest "
        "checkpoint that can be read",
    ),
    "benchmark_scores": Store(
        keys=_score_keys,
        places=[f"{MODELS}/*/benchmarks/*"],
        check=check_scores,
        remake=remake_scores,
    ),
    "descriptors": Store(
        keys=_descriptor_keys,
        places=[f"{SEARCH_FOLDER}/*/descriptors/*"],
        check=lambda root, key: descriptor_shard(root, *key.split("/")).verify(),
        remake=remake_descriptors,
        made_from=descriptors_made_from,
        forget=forget_descriptors,
    ),
    "search_index": Store(
        keys=_index_keys,
        places=[SEARCH_FOLDER],
        check=check_index,
        remake=rebuild_index,
        made_from=index_made_from,
        forget=forget_in_indexes,
    ),
    "answers": Store(
        keys=kept_jobs,
        places=[],  # a search that is lost can be repeated
        check=read_answer,
        forget=forget_in_answers,
        advice="Remove the file; the search can be repeated",
    ),
    "marks": Store(
        keys=_single(marks.PLACE),
        places=[marks.PLACE],
        check=lambda root, _: marks.read_marks(root),
        forget=forget_in_marks,
        advice=ONLY_RECORD,
    ),
    "duplicate_pairs": _rows("duplicate_pairs", PAIR_SCHEMA, forget_in_rows("duplicate_pairs")),
    "duplicate_groups": Store(
        keys=_single(GROUPS_PLACE, PICTURES_PLACE),
        places=[GROUPS_PLACE, PICTURES_PLACE],
        check=_check_groups,
        remake=CHAIN["duplicate_groups"].run,
        forget=forget_in_groups,
    ),
    "plans": Store(
        keys=_single(PLANNED),
        places=[PLANNED],
        check=lambda root, _: planned_moves(root),
        advice="Nothing else knows which files plans have moved",
    ),
    "watch_lists": Store(
        keys=_folders(LISTS),
        places=[f"{LISTS}/*"],
        check=check_watch_list,
        advice="Remove the list on the page, and search for the clip again to watch for it",
    ),
    "watch_matches": _rows("watch_matches", WATCH_SCHEMA, forget_in_watch_lists),
    "outbox": Store(
        keys=_single(OUTBOX_PLACE),
        places=[OUTBOX_PLACE],
        check=lambda root, _: AlertOutbox(root).check(),
        forget=forget_in_outbox,
        advice=ONLY_RECORD,
    ),
    "registry": Store(
        keys=_single(REGISTRY, "mlflow/artifacts/models"),
        places=["mlflow"],
        check=check_registry,
        forget=forget_in_trainings,  # scores in its runs, and in our own folders
    ),
}
"""Everything that the chain stores, in the order of the chain, in which it is repaired and
forgotten."""


def lost_files(root: DataRoot) -> dict[tuple[str, str], list[str]]:
    """The files that were made and are missing, by the store, of STORES, and the key that they
    belong to. Those that the automation leaves for itself belong to none."""
    lost: dict[tuple[str, str], list[str]] = {}
    for name in root.lost_files():
        owner = _owner_of(name)
        if owner is not None:
            lost.setdefault(owner, []).append(name)

    return lost


def _owner_of(name: str) -> tuple[str, str] | None:
    """The store with the longest place that has a file, and the file's key; None if none has it."""
    owners: dict[tuple[int, int], tuple[str, str]] = {}
    for kind, store in STORES.items():
        for place in store.places:
            key = _key_in(place, name)
            if key is not None:
                owners[_length(place)] = (kind, key)

    return owners[max(owners)] if owners else None


def _length(place: str) -> tuple[int, int]:
    """Of two places that have a file, the one with the larger length says more of it."""
    parts = place.split("/")
    return len(parts), -parts.count("*")


def _key_in(place: str, name: str) -> str | None:
    """The key of a file of a place, see `Store.places`; None for a file that is elsewhere."""
    wanted = place.split("/")
    parts = name.split("/")[: len(wanted)]
    if len(parts) < len(wanted):
        return None
    pairs = list(zip(wanted, parts, strict=True))
    if any(pattern not in ("*", part) for pattern, part in pairs):
        return None
    return "/".join(part for pattern, part in pairs if pattern == "*")
