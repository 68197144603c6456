"""Step 13: pairs of videos that share footage, shard by shard (asset `duplicate_pairs`).

duplicate_pairs/<shard>/rows.parquet     pairs of the shard's videos with all others
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import forgotten_of
from hapvr.data.stamped import read_rows, stamp, write_rows
from hapvr.progress import Progress, no_progress
from hapvr.search.collection import CHANGED, CollectionMetadata, SearchableCollection
from hapvr.search.duplicates import PAIR_SCHEMA, DuplicatePair, best_of_each, pair_table
from hapvr.search.marks import Marks, read_marks
from hapvr.steps.pair_search import pairs_of_video
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.shard_rows import outdated_shards, rows_place

PAIRS_STAGE = "duplicate_pairs"
PAIRS_VERSION = 6
"""Changes with what is stored of a pair."""


def make_duplicate_pairs(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> bool:
    """Look for every video of a shard in the whole collection; returns whether the shard had
    changed: else it is left alone. A pair of two shards is found by the one that is searched later,
    so new shards need no other one to be searched again, and a shard that was rebuilt is
    searched alone.

    Raises: DataError for a shard that is not in the index, and for a model without calibration.
    """
    root = project.root
    place = rows_place(PAIRS_STAGE, key)
    fingerprint = searcher.fingerprint(PAIRS_STAGE, key, pairs=PAIRS_VERSION)
    # before the lock, which a data root that is only read has not
    if stamp(read_rows(root, place, PAIR_SCHEMA, damaged=True)) == fingerprint:
        return False
    with root.lock(f"{PAIRS_STAGE}/{key}"):
        pairs: list[DuplicatePair] = []
        video_ids = searcher.collection.video_ids(key)
        for number, video_id in enumerate(video_ids):
            progress(number, len(video_ids))
            pairs += pairs_of_video(searcher, video_id)

        progress(len(video_ids), len(video_ids))
        table = pair_table(best_of_each(without_forgotten(searcher, pairs)))
        network = searcher.current.digest
        write_rows(root, place, table, fingerprint=fingerprint, network=network)

    return True


def without_forgotten(searcher: Searcher, pairs: Sequence[DuplicatePair]) -> list[DuplicatePair]:
    """The pairs of two videos of which none was forgotten since the searcher was opened. Call it
    under the lock of what the pairs are written to."""
    named = {video_id for pair in pairs for video_id in (pair.first, pair.second)}
    root = searcher.project.root
    forgotten = forgotten_of(root, named, searcher.collection.shard_of)
    return [pair for pair in pairs if forgotten.isdisjoint((pair.first, pair.second))]


def outdated_pairs(project: Project, metadata: CollectionMetadata | None = None) -> dict[str, str]:
    """As `outdated_shards`, of the pairs.

    metadata: of the collection, where somebody has it
    """
    return outdated_shards(project, PAIRS_STAGE, PAIR_SCHEMA, metadata, pairs=PAIRS_VERSION)


def duplicate_pairs(
    project: Project, searcher: Searcher, *, min_probability: float
) -> list[DuplicatePair]:
    """All stored pairs of the model that answers searches, and files of the same bytes; marks of
    people come first. Left out are videos that the index has no more or whose file is another one
    now, and pairs that are marked as no match. One that is marked as a match stays, whatever its
    probability, which is 0 where no search found it."""
    contents = _unchanged_contents(searcher.collection)
    stored = _stored_pairs(project.root, searcher.current.digest)
    current = [pair for pair in stored if _is_current(pair, contents)]
    marks = read_marks(project.root)
    pairs = best_of_each([*current, *_without_search(marks, contents)])
    return list(_with_marks(pairs, marks, min_probability))


def _unchanged_contents(collection: SearchableCollection) -> dict[str, str]:
    """Video id -> SHA-256 of all videos whose file is the one that was indexed; the others would be
    named for what they were."""
    metadata = collection.metadata
    contents: dict[str, str] = {}
    changed: list[str] = []
    for video_id in collection.video_ids():
        if metadata.has_changed(video_id):
            changed.append(video_id)
        else:
            contents[video_id] = metadata.of(video_id).sha256

    if changed:
        warnings.warn(
            f"duplicates: {len(changed)} videos are left out; {CHANGED.format(min(changed))}"
        )

    return contents


def _stored_pairs(root: DataRoot, network: str) -> Iterator[DuplicatePair]:
    """The pairs of all shards that this network found."""
    for key in root.list_folders(PAIRS_STAGE):
        table = read_rows(root, rows_place(PAIRS_STAGE, key), PAIR_SCHEMA)
        if stamp(table, "network") != network:
            continue
        for row in table.drop_columns(["kind"]).to_pylist():
            yield DuplicatePair(**row)


def _is_current(pair: DuplicatePair, contents: Mapping[str, str]) -> bool:
    """Whether both videos are in the index, with the contents that were compared."""
    is_first = contents.get(pair.first) == pair.first_sha256
    return is_first and contents.get(pair.second) == pair.second_sha256


def _with_marks(
    pairs: Iterable[DuplicatePair], marks: Marks, min_probability: float
) -> Iterator[DuplicatePair]:
    """The pairs that are likely enough, or marked as a match, with their marks."""
    for pair in pairs:
        mark = marks.verdict(pair.first_sha256, pair.second_sha256) or ""
        is_likely = pair.probability >= min_probability and not mark
        if is_likely or mark == "match":
            yield replace(pair, mark=mark)


def _without_search(marks: Marks, contents: Mapping[str, str]) -> Iterator[DuplicatePair]:
    """Files of the same bytes, which need no model, and videos that somebody marked as a match, as
    if no search had found them."""
    ids: dict[str, list[str]] = defaultdict(list)
    for video_id, sha256 in contents.items():
        ids[sha256].append(video_id)
    for video_ids in ids.values():
        for first, second in combinations(sorted(video_ids), 2):
            yield _pair_without_search(first, second, contents, value=1.0)

    for mark in marks.rows():
        if mark.verdict != "match":
            continue
        for video_id, match in product(ids.get(mark.first, ()), ids.get(mark.second, ())):
            first, second = sorted((video_id, match))
            if first != second:
                yield _pair_without_search(first, second, contents, value=0.0)


def _pair_without_search(
    first: str, second: str, contents: Mapping[str, str], *, value: float
) -> DuplicatePair:
    """A pair that is wholly alike, or of which no search knows anything.

    value: 1 or 0
    """
    return DuplicatePair(
        first=first,
        second=second,
        first_sha256=contents[first],
        second_sha256=contents[second],
        similarity=value,
        probability=value,
        first_covered=value,
        second_covered=value,
        frame_similarity=value,
    )
