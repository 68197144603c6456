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

    from hapvr.data.shard_build import StageResult
    from hapvr.steps.quality import Finding

PREVIEW_ROWS = 25
MAX_TEXT = 300


INDEX = {
    "video_id": "string",
    "status": "string: ok, unavailable, failed, too_large or not_video",
    "reason": "string: short code of a failure, else empty",
    "message": "string: the failure for people, else empty",
    "num_rows": "int64: rows of this video in the data file",
}


def columns(named: dict[str, str]) -> dict[str, dg.TableSchemaMetadataValue]:
    """An asset's column schema. named: per column "type" or "type: description"."""
    schema = dg.TableSchema(
        [
            dg.TableColumn(name, type=text.partition(": ")[0], description=text.partition(": ")[2] or None)
            for name, text in named.items()
        ]
    )
    return {"dagster/column_schema": dg.MetadataValue.table_schema(schema)}


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
    """A picture as JPEG inside Markdown. rows: names of its rows, from the top, for the list below it."""
    buffer = io.BytesIO()
    value.save(buffer, format="JPEG", quality=80)
    picture = _picture(buffer.getvalue(), "jpeg").value
    names = [f"{number}. `{name.replace('`', chr(39))}`" for number, name in enumerate(rows, start=1)]
    return dg.MetadataValue.md("\n".join([picture or "", "", *names]) if names else picture)


def stage(result: "StageResult") -> dict[str, Any]:
    """Counts, path, digests and failures of a shard.

    data_digest: of the rows; the lineage of a model names them by it. was_finished: nothing had to be made.
    """
    import polars as pl

    shard = result.shard
    failed = shard.index().filter(pl.col("status") != "ok").select("video_id", "reason", "message")
    entries: dict[str, Any] = {
        "dagster/row_count": result.num_rows,
        "videos_ok": result.num_ok,
        "videos_failed": result.num_failed,
        "path": dg.MetadataValue.path(f"{shard.root.url}/{shard.stage}/{shard.key}"),
        "digest": shard.digest(),
        "was_finished": not result.done,
    }
    if data_digest := shard.data_digest():  # `videos` has an index alone
        entries["data_digest"] = data_digest
    if len(failed):
        entries["failures"] = table(failed)
    return entries


def shard(
    result: "StageResult",
    findings: "Sequence[Finding]" = (),
    *,
    asset: str | None = None,
    more: dict[str, Any] | None = None,
) -> dg.MaterializeResult:
    """What a shard shows. Its data version is the digest of its index, so a run that left it alone changes nothing downstream.

    findings: of its checks. asset: which one it is, in a function that makes several. more: entries of the step's own.
    """
    return dg.MaterializeResult(
        asset_key=asset,
        metadata=stage(result) | (more or {}),
        data_version=dg.DataVersion(result.shard.digest()),
        check_results=checks.results(findings, asset=asset),
    )


def _picture(data: bytes, kind: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(f"![picture](data:image/{kind};base64,{base64.b64encode(data).decode()})")


def _cell(value: Any) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:MAX_TEXT]
