"""Step 12: the index, which is kept up to date with the descriptors of frames (asset
`search_index`)."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hapvr.data.features import (
    STAGE as FEATURES_STAGE,
    collection_shards,
    without_extras,
)
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.files import digest_of
from hapvr.progress import Progress, no_progress
from hapvr.search import blank_file, descriptors
from hapvr.search.current import (
    SEARCH_FOLDER,
    CurrentIndex,
    model_place,
    serving_index,
    write_current,
)
from hapvr.search.frame_index import MIN_RECALL, STATE_FILE, FrameIndex, IndexStatus
from hapvr.search.indexes import create_index, open_index
from hapvr.search.video_index import video_shards
from hapvr.steps.frame_descriptors import descriptor_recipe, make_descriptors
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel
from hapvr.steps.video_vectors import FilledVideos, fill_videos

INDEX_NAME = re.compile(r"index-\d{4,}")
KEPT_MODELS = 1
"""How many models before the current one keep their indexes for a rollback."""


@dataclass(frozen=True, kw_only=True)
class IndexUpdate:
    """What an update did."""

    serving: CurrentIndex | None
    """the index that answers searches now"""
    passed: bool
    """whether this is the index that was brought up to date; if not, that one's recall was too
    low"""
    status: IndexStatus
    recall: float
    shards: dict[str, list[str]]
    """`added`, `replaced`, `removed`, and `awaited` because their features are unfinished"""
    done: bool
    """whether anything changed"""


def update_index(
    project: Project, model: SearchModel, *, rebuild: bool = False, progress: Progress = no_progress
) -> IndexUpdate:
    """Bring the index of this model up to date with all features, check it, and let it answer if it
    passes. Shards that the index has are not touched, so a killed update goes on where it stopped.

    rebuild: build another index from the first shard on; the current one answers until it is done

    Raises: DataError if there are no features, or features that do not go with the model.
    """
    root = project.root
    with root.lock(SEARCH_FOLDER):
        finished, awaited = collection_shards(root)
        if not finished:
            raise DataError(
                "search: no shard has features; run `hapvr extract` with this configuration first"
            )

        _require_one_shard_per_video(project, finished)
        serving = serving_index(root)
        place = _place(root, model.digest, serving, rebuild=rebuild)
        filled = _fill(project, model, place, finished, awaited, serving, progress)
        videos = fill_videos(project, model, place, finished, awaited)
        index = filled.index
        serving = filled.serving
        recall = _recall_after_upkeep(index)
        if videos is not None:
            recall = min(recall, _recall_after_upkeep(videos.index))
        progress(len(finished), len(finished))
        passed = recall >= MIN_RECALL
        status = index.status()
        now_serving = _serve(root, model, place, recall, serving) if passed else serving
        is_changed = status.revision != filled.revision_before
        return IndexUpdate(
            serving=now_serving,
            passed=passed,
            status=status,
            recall=recall,
            shards=filled.shards,
            done=is_changed or _is_changed(videos) or now_serving != serving,
        )


def _is_changed(videos: FilledVideos | None) -> bool:
    return videos is not None and videos.changed


def _require_one_shard_per_video(project: Project, keys: Sequence[str]) -> None:
    """Raise DataError where two shards have features of one video."""
    holder: dict[str, str] = {}
    for key in keys:
        rows = project.shard(FEATURES_STAGE, key).read().table
        for video_id in rows.column("video_id").to_pylist():
            first = holder.setdefault(video_id, key)
            if first != key:
                hint = "move those that were imported to another data root"
                raise DataError(
                    f"search: {video_id} has features in the shards {first} and {key}; {hint}"
                )


def _with_begun_index(
    root: DataRoot, serving: CurrentIndex | None, place: str
) -> CurrentIndex | None:
    """The index that answers. Its record names another index before that is begun, so that one left
    unfinished can be removed."""
    if serving is None or place in serving.made:
        return serving
    serving = replace(serving, made=(*serving.made, place))
    write_current(root, serving)
    return serving


@dataclass(frozen=True, kw_only=True)
class _FilledIndex:
    """An index that has all shards."""

    index: FrameIndex
    shards: dict[str, list[str]]
    """as of `IndexUpdate`"""
    revision_before: int
    """-1 of a new index"""
    serving: CurrentIndex | None
    """the index that answers; its record names this one if it is new"""


def _fill(
    project: Project,
    model: SearchModel,
    place: str,
    finished: Sequence[str],
    awaited: Collection[str],
    serving: CurrentIndex | None,
    progress: Progress,
) -> _FilledIndex:
    """Describe all shards that have features, add to the index those that it lacks, and remove
    those that are gone."""
    url = project.root.url_of(place)
    settings = project.config.search.index
    index: FrameIndex | None = None
    held: dict[str, str] = {}
    revision_before = -1
    if project.root.exists(f"{place}/{STATE_FILE}"):
        index = open_index(url, settings)
        held = index.shard_digests()
        revision_before = index.status().revision

    shards: dict[str, list[str]] = {"added": [], "replaced": [], "removed": []}
    shards["awaited"] = list(awaited)
    for number, key in enumerate(finished):
        progress(number, len(finished))
        shard = make_descriptors(project, key, model).shard
        digest = shard.read().data_sha256
        if held.get(key) == digest:
            continue
        if index is None:
            serving = _with_begun_index(project.root, serving, place)
            made_with = {"model": model.uri, "digest": model.digest}
            index = create_index(url, model.embedding_dims, made_with, settings)

        index.replace_shard(key, descriptors.searchable(shard), digest=digest)
        shards["replaced" if key in held else "added"].append(key)

    assert index is not None
    for key in held:
        if key not in finished and key not in awaited:
            index.delete_shard(key)
            shards["removed"].append(key)

    return _FilledIndex(
        index=index, shards=shards, revision_before=revision_before, serving=serving
    )


def _recall_after_upkeep(index: FrameIndex) -> float:
    """The recall of an index after its upkeep. If it is too low, the lists are rebuilt: those of
    vectors that have changed since may be useless."""
    index.optimise()
    recall = index.recall()
    if recall < MIN_RECALL:
        index.optimise(rebuild=True)
        recall = index.recall()

    return recall


def outdated_index(project: Project, model: SearchModel) -> tuple[dict[str, str], str]:
    """Compare the features there are with the index that answers.

    Returns the shards whose descriptors are not those of their features, each with a digest of
    model, features and day; and a digest of what the index lacks, "" if it is this model's and
    lacks nothing. Raises DataError for features of another model."""
    root = project.root
    undescribed: dict[str, str] = {}
    described: dict[str, str] = {}
    for key in collection_shards(root)[0]:
        features = project.shard(FEATURES_STAGE, key)
        made_with = digest_of(without_extras(features.require({}).settings))
        blank = blank_file.known_blank(root, model.digest, made_with)
        recipe = descriptor_recipe(project, key, model, blank)
        if recipe.shard.is_finished(recipe.provenance):
            described[key] = recipe.shard.read().data_sha256
        else:
            today = str(datetime.now(UTC).date())  # failed shards are tried again a day later
            undescribed[key] = digest_of([model.digest, features.digest(), today])

    serving = serving_index(root)
    held: dict[str, str] = {}
    videos = described if model.embeds_videos else {}
    held_videos = {}
    if serving is not None and serving.digest == model.digest:
        held = serving.shards(root)
        held_videos = video_shards(root, serving.place)

    if not undescribed and held == described and held_videos == videos:
        return undescribed, ""
    # `since`: a champion that comes back twice is another state the second time.
    answering = serving and [serving.place, serving.since]
    lacking = [model.digest, answering, held, described, undescribed]
    if held_videos != videos:
        lacking.append(held_videos)
    return undescribed, digest_of(lacking)


def _place(root: DataRoot, digest: str, serving: CurrentIndex | None, *, rebuild: bool) -> str:
    """The folder of the index to bring up to date, which may not exist yet."""
    above = model_place(digest)
    there = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
    if not rebuild and serving is not None and serving.digest == digest:
        return serving.place
    usable = [name for name in there if root.exists(f"{above}/{name}/{STATE_FILE}")]
    if not rebuild and usable:
        return f"{above}/{usable[-1]}"
    number = max((int(name.removeprefix("index-")) for name in there), default=0) + 1
    return f"{above}/index-{number:04d}"


def _serve(
    root: DataRoot, model: SearchModel, place: str, recall: float, before: CurrentIndex | None
) -> CurrentIndex:
    """Let an index answer, and remove those indexes of the record that no rollback needs. The one
    that it replaces stays until the next call, for searches that have it open."""
    in_use = [place] if before is None else [place, before.place]
    earlier = () if before is None else before.made
    places = list(dict.fromkeys([*in_use, *earlier]))  # newest first
    networks = list(dict.fromkeys(map(_network_of, places)))
    forgotten = networks[1 + KEPT_MODELS :]

    kept: list[str] = []
    for made_place in places:
        is_needless = _network_of(made_place) in (model.digest, *forgotten)
        if is_needless and made_place not in in_use:
            remove(root, made_place)
        else:
            kept.append(made_place)

    for digest in forgotten:
        _remove_descriptors(root, digest)

    now = datetime.now(UTC).isoformat(timespec="seconds")
    serving = CurrentIndex(
        place=place,
        model=model.uri,
        digest=model.digest,
        recall=recall,
        since=before.since if before is not None and before.place == place else now,
        made=tuple(kept),
    )
    if serving != before:
        write_current(root, serving)
    return serving


def _network_of(place: str) -> str:
    """The digest of the network that made an index."""
    return place.split("/")[1]


def _remove_descriptors(root: DataRoot, digest: str) -> None:
    """Remove everything that a network made, except its indexes."""
    above = model_place(digest)
    remove(root, f"{above}/descriptors")
    root.delete(f"{above}/{blank_file.BLANK_FILE}")
    if not root.list_folders(above) and not root.list_files(above):
        remove(root, above)


def remove(root: DataRoot, place: str) -> None:
    """Remove a folder of ours, unless it is a link to somewhere else, or is behind one."""
    if root.local is None or root.local_path(place).resolve() == root.local_path(place):
        root.delete_folder(place)
