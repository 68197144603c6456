"""What searches found by the videos of a shard, as rows of a table; pairs of videos and matches of
watch lists are kept so."""

import pyarrow as pa

from hapvr.data.stamped import read_rows, stamp
from hapvr.files import digest_of
from hapvr.search.collection import CURRENT, CollectionMetadata, current_index
from hapvr.steps.project import Project
from hapvr.steps.search_fingerprint import search_fingerprint


def rows_place(stage: str, key: str) -> str:
    """Where a step keeps what a search gave of a shard."""
    return f"{stage}/{key}/rows.parquet"


def outdated_shards(
    project: Project,
    stage: str,
    schema: pa.Schema,
    metadata: CollectionMetadata | None = None,
    **asked: object,
) -> dict[str, str]:
    """Shards of the index whose rows a step has to make, as the model, the settings or what it asks
    for are others; each with a digest that is another one if a champion comes back. Nothing is
    outdated where there is no index.

    schema: of the rows
    metadata: of the collection, where somebody has it
    asked: what the step adds to `search_fingerprint`
    """
    root = project.root
    if not root.exists(CURRENT):
        return {}
    current = current_index(root)
    if metadata is None:
        metadata = CollectionMetadata(root, {})

    outdated: dict[str, str] = {}
    for key, indexed in sorted(current.shards(root).items()):
        contents = metadata.contents(key)
        wanted = search_fingerprint(stage, project, current, key, indexed, contents, **asked)
        rows = read_rows(root, rows_place(stage, key), schema, damaged=True)
        if stamp(rows) != wanted:
            outdated[key] = digest_of([wanted, current.since])

    return outdated
