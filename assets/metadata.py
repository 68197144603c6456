"""What materializations show: counts, digests, tables and pictures."""

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import checks

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from hapvr.data.filesystem import DataRoot
    from hapvr.data.shard_build import StageResult
    from hapvr.steps.quality import Finding

PREVIEW_ROWS = 25
MAX_TEXT = 300


def columns(root: "DataRoot", name: str) -> dict[str, dg.TableSchemaMetadataValue]:
    """The column schema of a stored table."""
    import pyarrow.parquet as pq

    with root.open(name) as file:
        schema = dg.TableSchema(
            [dg.TableColumn(field.name, str(field.type)) for field in pq.read_schema(file)]
        )
    return {"dagster/column_schema": dg.MetadataValue.table_schema(schema)}


def stored(root: "DataRoot", name: str) -> dict[str, Any]:
    """Path, digest and column schema of a table that is one file."""
    digest = root.sha256(name)
    return {
        "path": dg.MetadataValue.path(f"{root.url}/{name}"),
        "digest": digest,
        **columns(root, name),
    }


def table(frame: "pl.DataFrame", *, rows: int = PREVIEW_ROWS) -> dg.TableMetadataValue:
    """The first rows of a frame as a table with its column types."""
    columns = [dg.TableColumn(name, str(dtype)) for name, dtype in frame.schema.items()]
    records = [
        dg.TableRecord({name: _cell(value) for name, value in row.items()})
        for row in frame.head(rows).iter_rows(named=True)
    ]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def figure(value: "Figure") -> dg.MarkdownMetadataValue:
    """A plot as a picture inside Markdown."""
    buffer = io.BytesIO()
    value.savefig(buffer, format="png", dpi=80)
    return _picture(buffer.getvalue(), "png")


def image(value: "Image", *, rows: Sequence[str] = ()) -> dg.MarkdownMetadataValue:
    """A picture as JPEG inside Markdown. rows: names of its rows, from the top, for the list below
    it."""
    buffer = io.BytesIO()
    value.save(buffer, format="JPEG", quality=80)
    picture = _picture(buffer.getvalue(), "jpeg").value
    names = [
        f"{number}. `{name.replace('`', chr(39))}`" for number, name in enumerate(rows, start=1)
    ]
    return dg.MetadataValue.md("\n".join([picture or "", "", *names]) if names else picture)


def shard(
    result: "StageResult",
    findings: "Sequence[Finding]" = (),
    *,
    asset: str | None = None,
    more: dict[str, Any] | None = None,
) -> dg.MaterializeResult:
    """Counts, columns, digests and failures of a shard. Its data version is the digest of its
    index, so a run that left it alone changes nothing downstream.

    findings: of its checks. asset: which one it is, in a function that makes several. more: entries
    of the step's own.
    """
    import polars as pl

    shard = result.shard
    failed = shard.index().filter(pl.col("status") != "ok").select("video_id", "reason", "message")
    data_digest = shard.read().data_sha256  # `videos` has an index alone
    entries: dict[str, Any] = {
        "dagster/row_count": result.num_rows,
        "videos_ok": result.num_ok,
        "videos_failed": result.num_failed,
        "path": dg.MetadataValue.path(f"{shard.root.url}/{shard.stage}/{shard.key}"),
        "digest": shard.digest(),
        "was_finished": not result.done,
        **(
            {"data_digest": data_digest} if data_digest else {}
        ),  # the lineage of a model names the rows by it
        **columns(shard.root, shard.data_name if data_digest else shard.index_name),
        **({"failures": table(failed)} if len(failed) else {}),
    }
    return dg.MaterializeResult(
        asset_key=asset,
        metadata=entries | (more or {}),
        data_version=dg.DataVersion(shard.digest()),
        check_results=[
            checks.result(
                one.name, one.passed, one.hint, severity=one.severity, asset=asset, **one.values
            )
            for one in findings
        ],
    )


def _picture(data: bytes, kind: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(
        f"![picture](data:image/{kind};base64,{base64.b64encode(data).decode()})"
    )


def _cell(value: Any) -> str | int | float | bool | None:
    return (
        value if value is None or isinstance(value, bool | int | float) else str(value)[:MAX_TEXT]
    )
