"""Pairs and groups as Parquet files, with what they were found by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa

from hapvr.search.duplicates import DuplicatePair, GroupMember
from hapvr.storage.filesystem import DataRoot, read_schema_metadata
from hapvr.tables import read_table, write_table

FINGERPRINT = b"hapvr.fingerprint"
NETWORK = b"hapvr.network"
PAIR_SCHEMA = pa.schema(
    [
        ("first", pa.string()),
        ("second", pa.string()),
        ("first_sha256", pa.string()),
        ("second_sha256", pa.string()),
        ("similarity", pa.float64()),
        ("probability", pa.float64()),
        ("first_covered", pa.float64()),
        ("second_covered", pa.float64()),
        ("first_start_s", pa.float64()),
        ("second_start_s", pa.float64()),
        ("mark", pa.string()),
    ]
)
GROUP_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("video_id", pa.string()),
        ("medoid", pa.bool_()),
        ("keep", pa.bool_()),
        ("reason", pa.string()),
        ("similarity", pa.float64()),
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("num_bytes", pa.int64()),
        ("duration_s", pa.float64()),
        ("width_px", pa.int32()),
        ("height_px", pa.int32()),
        ("codec", pa.string()),
    ]
)


@dataclass(frozen=True)
class StoredPairs:
    """fingerprint: of all that may change the pairs. network: digest of the network that found them."""

    pairs: tuple[DuplicatePair, ...]
    fingerprint: str
    network: str


def write_pairs(root: DataRoot, place: str, found: StoredPairs) -> None:
    """Replace the file at `place`, whole. Raises DataError where it cannot be written."""
    metadata = {FINGERPRINT: found.fingerprint.encode(), NETWORK: found.network.encode()}
    with root.write(place) as stream:
        write_table(pair_rows(found.pairs).replace_schema_metadata(metadata), stream)


def read_pairs(root: DataRoot, place: str) -> StoredPairs | None:
    """What `write_pairs` wrote; None where nothing is. Raises DamagedError for a file that cannot be read."""
    if not root.exists(place):
        return None
    with root.open(place) as file, root.naming_damage(place, remedy="run `hapvr duplicates` again"):
        table = read_table(pa.BufferReader(file.read()))
        network = read_schema_metadata(table.schema, NETWORK)
        if not network:  # of a version that did not say what had found the pairs, so they are looked for again
            return None
        pairs = tuple(DuplicatePair(**row) for row in table.select(PAIR_SCHEMA.names).to_pylist())
        return StoredPairs(pairs, read_schema_metadata(table.schema, FINGERPRINT), network)


def pair_rows(pairs: Iterable[DuplicatePair]) -> pa.Table:
    """A row per pair."""
    return pa.Table.from_pylist([asdict(pair) for pair in pairs], schema=PAIR_SCHEMA)


def write_groups(root: DataRoot, place: str, members: Iterable[GroupMember], *, fingerprint: str) -> None:
    """Replace the file at `place`, whole. fingerprint: of all that may change the groups."""
    table = group_rows(members).replace_schema_metadata({FINGERPRINT: fingerprint.encode()})
    with root.write(place) as stream:
        write_table(table, stream)


def groups_fingerprint(root: DataRoot, place: str) -> str:
    """The fingerprint of the groups that are there; empty where there are none. Raises DamagedError."""
    if not root.exists(place):
        return ""
    with root.open(place) as file, root.naming_damage(place, remedy="run `hapvr duplicates` again"):
        return read_schema_metadata(read_table(pa.BufferReader(file.read())).schema, FINGERPRINT)


def group_rows(members: Iterable[GroupMember]) -> pa.Table:
    """A row per member, with the facts of its file."""
    rows = []
    for member in members:
        row = asdict(member)
        file = row.pop("facts")
        rows.append(row | file | {"path": None if file["path"] is None else str(file["path"])})
    return pa.Table.from_pylist(rows, schema=GROUP_SCHEMA)
