"""Results of searches for the videos of a shard, or within it, as rows of a table: pairs of videos,
and matches of watch lists."""

import pyarrow as pa

from hapvr.data.stamped import read_rows, stamp
from hapvr.files import digest_of
from hapvr.search.collection import CollectionMetadata
from hapvr.search.current import CURRENT, current_index
from hapvr.steps.project import Project
from hapvr.steps.search_fingerprint import search_fingerprint


def rows_place(stage: str, key: str) -> str:
    """Where a step keeps the search results of a shard."""
    return f"{stage}/{key}/rows.parquet"


def outdated_shards(
    project: Project,
    stage: str,
    schema: pa.Schema,
    metadata: CollectionMetadata | None = None,
    **asked: object,
) -> dict[str, str]:
    """Shards of the index whose rows a step has to rebuild, because the model, the settings or its
    questions have changed; each with a digest, which is a new one even if a former champion comes
    back. Nothing is outdated if there is no index.

    schema: of the rows
    metadata: of the collection, if it is open already
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
