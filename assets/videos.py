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
SHEET_VIDEOS, SHEET_FRAMES = 8, 6


def last_manifest(instance: dg.DagsterInstance, root: "DataRoot") -> tuple[object, str] | None:
    """The digest of the sources that the last manifest was made from, and the run; None if it was
    that of another data root, or of more shards than there are: an older copy was restored."""
    from hapvr.data.manifest import root_id, shard_keys

    event = instance.get_latest_materialization_event(dg.AssetKey("video_manifest"))
    made = None if event is None else event.asset_materialization
    if (
        event is None
        or made is None
        or made.metadata.get("data_root") != dg.MetadataValue.text(root_id(root))
    ):
        return None
    is_whole = int(str(made.metadata["shards"].value)) <= len(shard_keys(root))
    return (made.metadata["offer"].value, event.run_id) if is_whole else None


def is_unmounted(instance: dg.DagsterInstance, root: "DataRoot") -> bool:
    """Whether the last manifest was written to this place, where nothing is now."""
    from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE

    event = instance.get_latest_materialization_event(dg.AssetKey("video_manifest"))
    made = None if event is None else event.asset_materialization
    was_here = made is not None and made.metadata.get("path") == dg.MetadataValue.path(
        f"{root.url}/{MANIFEST_STAGE}"
    )
    return was_here and not any(map(root.list_folders, (MANIFEST_STAGE, VIDEOS_STAGE)))


def _show_manifest(made: Made) -> dg.MaterializeResult:
    from hapvr.data.manifest import MANIFEST_STAGE, read_manifest, root_id

    result, root = made.result, made.project.root
    manifest, instance, name = read_manifest(root), made.context.instance, str(SHARDS.name)
    known = set(instance.get_dynamic_partitions(name))
    if known and (last_manifest(instance, root) is None or known & set(result.new_shards)):
        # what was made of another data root would be taken for what was made of this one
        made.context.log.warning(
            "this data root is another than before: what Dagster knows of other assets is wiped"
        )
        instance.wipe_assets([dg.AssetKey(step) for step in CHAIN if step != "video_manifest"])
    for stale in known - set(result.shards):  # of another configuration
        instance.delete_dynamic_partition(name, stale)
    instance.add_dynamic_partitions(name, list(result.shards))
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(manifest),
            "shards": len(result.shards),
            "new_shards": len(result.new_shards),
            "videos_by_source": dg.MetadataValue.json(
                dict(manifest["source"].value_counts(sort=True).iter_rows())
            ),
            "path": dg.MetadataValue.path(f"{root.url}/{MANIFEST_STAGE}"),
            "data_root": root_id(root),
            "digest": result.digest,
            "offer": result.offer,
            "rows": metadata.table(manifest.drop("uri")),
        },
        data_version=dg.DataVersion(result.digest),
    )


video_manifest = step_asset("video_manifest", _show_manifest, group="ingest", kinds={"parquet"})


def _show_videos(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_videos

    rows = made.result.shard.index().select(
        "video_id", "status", "reason", "duration_s", "fps", "codec", "num_bytes"
    )
    return metadata.shard(
        made.result, check_videos(made.project, made.key), more={"rows": metadata.table(rows)}
    )


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
        for column, index in enumerate(
            np.linspace(0, len(jpegs) - 1, SHEET_FRAMES).round().astype(int)
        ):
            picture = ImageOps.pad(thumbnail(jpegs[index], size_px=THUMBNAIL_PX), THUMBNAIL_PX)
            sheet.paste(picture, (column * width, row * height))
    return sheet


def _show_frames(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_frames
    from hapvr.steps.videos import open_frames

    more = {}
    if made.result.num_ok:
        reader = open_frames(made.project, made.key)
        more["contact_sheet"] = metadata.image(
            contact_sheet(reader), rows=reader.video_ids[:SHEET_VIDEOS]
        )
    return metadata.shard(made.result, check_frames(made.project, made.key), more=more)


frames = step_asset(
    "frames",
    _show_frames,
    group="ingest",
    kinds={"parquet"},
    checks=checks.FRAMES,
    arguments=lambda _: {"retry_failed": True},
)
