"""Tables that a step replaces as a whole, with stamps that say what they were made from."""

import pyarrow as pa

from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.errors import DamagedError
from hapvr.tables import read_table, write_table


def write_rows(root: DataRoot, place: str, table: pa.Table, **stamps: str) -> None:
    """Replace the file at `place`, whole.

    stamps: what to keep with the rows

    Raises: DataError where it cannot be written.
    """
    metadata = {f"hapvr.{name}": text for name, text in stamps.items()}
    with root.write(place) as stream:
        write_table(table.replace_schema_metadata(metadata), stream)


def read_rows(root: DataRoot, place: str, schema: pa.Schema, *, damaged: bool = False) -> pa.Table:
    """The columns of `schema` that `write_rows` wrote; no rows and no stamps where nothing was
    written.

    damaged: whether a file that cannot be read counts as missing, as for the step that makes it;
    else it raises DamagedError
    """
    if not root.exists(place):
        return schema.empty_table()
    hint = f"`hapvr run {place.partition('/')[0]}` rebuilds it"
    try:
        with root.open(place) as file, root.corruption_errors(place, hint=hint):
            table = read_table(pa.BufferReader(file.read()))
            return table.select(schema.names).cast(schema.with_metadata(table.schema.metadata))
    except DamagedError:
        if damaged:
            return schema.empty_table()
        raise


def stamp(table: pa.Table, name: str = "fingerprint") -> str:
    """A stamp that `write_rows` kept with the rows; empty where it kept none."""
    return read_schema_metadata(table.schema, f"hapvr.{name}".encode())
