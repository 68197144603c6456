"""The metadata of materialisations: counts, digests, tables and pictures."""

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
        fields = list(pq.read_schema(file))
    schema = dg.TableSchema([dg.TableColumn(field.name, str(field.type)) for field in fields])
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
    """A picture as JPEG inside Markdown. rows: the names of its rows, from the top, to be listed
    below it."""
    buffer = io.BytesIO()
    value.save(buffer, format="JPEG", quality=80)
    lines = [_picture(buffer.getvalue(), "jpeg").value or ""]
    if rows:
        lines.append("")
    for number, name in enumerate(rows, start=1):
        quoted = name.replace("`", "'")
        lines.append(f"{number}. `{quoted}`")

    return dg.MetadataValue.md("\n".join(lines))


def shard(
    result: "StageResult",
    findings: "Sequence[Finding]" = (),
    *,
    asset: str | None = None,
    more: dict[str, Any] | None = None,
) -> dg.MaterializeResult:
    """Counts, columns, digests and failures of a shard. Its data version is the digest of its
    index, so a run that did not change the shard changes nothing downstream.

    findings: of its checks
    asset: which asset it is, in a function that makes several
    more: entries of the step's own
    """
    import polars as pl

    shard = result.shard
    entries: dict[str, Any] = {
        "dagster/row_count": result.num_rows,
        "videos_ok": result.num_ok,
        "videos_failed": result.num_failed,
        "path": dg.MetadataValue.path(f"{shard.root.url}/{shard.stage}/{shard.key}"),
        "digest": shard.digest(),
        "was_finished": not result.done,
    }
    data_digest = shard.read().data_sha256
    if data_digest:
        entries["data_digest"] = data_digest  # the lineage of a model names the rows by it
        entries |= columns(shard.root, shard.data_name)
    else:  # `videos` has an index alone
        entries |= columns(shard.root, shard.index_name)

    failed = shard.index().filter(pl.col("status") != "ok").select("video_id", "reason", "message")
    if len(failed):
        entries["failures"] = table(failed)
    return dg.MaterializeResult(
        asset_key=asset,
        metadata=entries | (more or {}),
        data_version=dg.DataVersion(shard.digest()),
        check_results=[_check_result(finding, asset) for finding in findings],
    )


def _check_result(finding: "Finding", asset: str | None) -> dg.AssetCheckResult:
    return checks.result(
        finding.name,
        finding.passed,
        finding.hint,
        severity=finding.severity,
        asset=asset,
        **finding.values,
    )


def _picture(data: bytes, kind: str) -> dg.MarkdownMetadataValue:
    encoded = base64.b64encode(data).decode()
    return dg.MetadataValue.md(f"![picture](data:image/{kind};base64,{encoded})")


def _cell(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:MAX_TEXT]
