"""Ingest: which videos there are, the files themselves, and their sampled frames."""

from typing import TYPE_CHECKING

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset
from assets.project import SHARDS
from hapvr.chain import CHAIN

if TYPE_CHECKING:
    from PIL.Image import Image

    from hapvr.data.filesystem import DataRoot
    from hapvr.data.frames import FrameFile

THUMBNAIL_PX = (160, 90)
SHEET_VIDEOS = 8
SHEET_FRAMES = 6


def last_manifest(instance: dg.DagsterInstance, root: "DataRoot") -> tuple[object, str] | None:
    """The digest of the sources of the last manifest, and its run; None if it was the manifest of
    another data root, or had more shards than there are, because an older copy was restored."""
    from hapvr.data.manifest import root_id, shard_keys

    event = instance.get_latest_materialization_event(dg.AssetKey("video_manifest"))
    if event is None or event.asset_materialization is None:
        return None
    values = event.asset_materialization.metadata
    if values.get("data_root") != dg.MetadataValue.text(root_id(root)):
        return None
    if int(str(values["shards"].value)) > len(shard_keys(root)):
        return None
    return values["offer"].value, event.run_id


def is_unmounted(instance: dg.DagsterInstance, root: "DataRoot") -> bool:
    """Whether the last manifest was written to this place, which is empty now."""
    from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE

    event = instance.get_latest_materialization_event(dg.AssetKey("video_manifest"))
    if event is None or event.asset_materialization is None:
        return False
    place = dg.MetadataValue.path(f"{root.url}/{MANIFEST_STAGE}")
    if event.asset_materialization.metadata.get("path") != place:
        return False
    return not any(map(root.list_folders, (MANIFEST_STAGE, VIDEOS_STAGE)))


def _show_manifest(made: Made) -> dg.MaterializeResult:
    from hapvr.data.manifest import MANIFEST_STAGE, read_manifest, root_id

    result = made.result
    root = made.project.root
    _register_shards(made)
    manifest = read_manifest(root)
    counts = dict(manifest["source"].value_counts(sort=True).iter_rows())
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(manifest),
            "shards": len(result.shards),
            "new_shards": len(result.new_shards),
            "videos_by_source": dg.MetadataValue.json(counts),
            "path": dg.MetadataValue.path(f"{root.url}/{MANIFEST_STAGE}"),
            "data_root": root_id(root),
            "digest": result.digest,
            "offer": result.offer,
            "rows": metadata.table(manifest.drop("uri")),
        },
        data_version=dg.DataVersion(result.digest),
    )


def _register_shards(made: Made) -> None:
    """Set the partitions to those of the manifest."""
    result = made.result
    instance = made.context.instance
    name = str(SHARDS.name)
    registered = set(instance.get_dynamic_partitions(name))
    is_other_root = last_manifest(instance, made.project.root) is None
    if registered and (is_other_root or registered & set(result.new_shards)):
        # Assets of another data root would be taken for those of this one.
        made.context.log.warning(
            "this data root is not the former one: what Dagster knows of other assets is wiped"
        )
        instance.wipe_assets([dg.AssetKey(step) for step in CHAIN if step != "video_manifest"])

    for stale in registered - set(result.shards):  # of another configuration
        instance.delete_dynamic_partition(name, stale)
    instance.add_dynamic_partitions(name, list(result.shards))


video_manifest = step_asset("video_manifest", _show_manifest, group="ingest", kinds={"parquet"})


def _show_videos(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_videos

    rows = made.result.shard.index().select(
        "video_id", "status", "reason", "duration_s", "fps", "codec", "num_bytes"
    )
    findings = check_videos(made.project, made.key)
    return metadata.shard(made.result, findings, more={"rows": metadata.table(rows)})


videos = step_asset(
    "videos",
    _show_videos,
    group="ingest",
    kinds={"parquet"},
    checks=checks.VIDEOS,
    arguments=lambda _: {"retry_failed": True},
)


def contact_sheet(frames: "FrameFile") -> "Image":
    """A row for each of the first SHEET_VIDEOS videos, SHEET_FRAMES evenly spaced frames in each,
    padded to THUMBNAIL_PX."""
    import numpy as np
    from PIL import Image, ImageOps

    from hapvr.data.frames import thumbnail

    video_ids = frames.video_ids[:SHEET_VIDEOS]
    width, height = THUMBNAIL_PX
    sheet = Image.new("RGB", (width * SHEET_FRAMES, height * max(1, len(video_ids))), "black")
    for row, video_id in enumerate(video_ids):
        jpegs = frames.read(video_id).jpegs
        shown = np.linspace(0, len(jpegs) - 1, SHEET_FRAMES).round().astype(int)
        for column, index in enumerate(shown):
            picture = ImageOps.pad(thumbnail(jpegs[index], size_px=THUMBNAIL_PX), THUMBNAIL_PX)
            sheet.paste(picture, (column * width, row * height))

    return sheet


def _show_frames(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.frames import open_frames
    from hapvr.steps.quality import check_frames

    more = {}
    if made.result.num_ok:
        reader = open_frames(made.project, made.key)
        sheet = contact_sheet(reader)
        more["contact_sheet"] = metadata.image(sheet, rows=reader.video_ids[:SHEET_VIDEOS])

    return metadata.shard(made.result, check_frames(made.project, made.key), more=more)


frames = step_asset(
    "frames",
    _show_frames,
    group="ingest",
    kinds={"parquet"},
    checks=checks.FRAMES,
    arguments=lambda _: {"retry_failed": True},
)
