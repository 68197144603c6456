"""`hapvr pdq export | match`: hashes of the collection's frames for others, and its videos that
show what their lists name."""

import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hapvr.commands.terminal import (
    ConfigOption,
    Verbs,
    counted,
    open_project,
    progress_bar,
    require_outside,
    show,
)

app = Verbs(
    name="pdq",
    no_args_is_help=True,
    help="PDQ hashes of frames, as ThreatExchange and vPDQ share them.",
)
COLUMNS = ("video_id", "frame", "quality", "hash", "timestamp")


@app.command("export")
def export(
    config: ConfigOption,
    out: Annotated[Path, Option(help="The .csv file.")],
    video_ids: Annotated[
        list[str] | None, Argument(help="Videos of the collection, by id. Default: all.")
    ] = None,
) -> None:
    """Write a line for each stored frame: video, number, quality from 0 to 100, PDQ hash,
    second."""
    from hapvr.tables import export_csv

    require_outside(out)
    asked, written = frozenset(video_ids or ()), dict[str, int]()

    def rows() -> Iterator[dict[str, Any]]:
        for video_id, frames in _hashed(config, asked):
            written[video_id] = len(frames)
            for number, (second, digest, quality) in enumerate(frames):
                said = (video_id, number, quality, digest.tobytes().hex(), f"{second:.3f}")
                yield dict(zip(COLUMNS, said, strict=True))

    export_csv(COLUMNS, rows(), out)
    missing, frames = sorted(asked - written.keys()), sum(written.values())
    lines = [f"{counted(frames, 'frame')} of {counted(len(written), 'video')} are in {out}"]
    lines += [f"failed   {one}: the collection has no stored frames of it" for one in missing]
    result = {"out": str(out), "videos": len(written), "frames": frames, "failed": missing}
    show(result, text=lines, failed=bool(missing))


@app.command("match")
def match(
    file: Annotated[
        Path, Argument(metavar="LIST", help="Text or CSV with a hash of 64 digits in each line.")
    ],
    config: ConfigOption,
) -> None:
    """Which videos have frames within 31 bits of a hash of a list, how many, at which seconds? The
    nearest come first."""
    import numpy as np

    from hapvr.scorer.segments import clock
    from hapvr.video.pdq import MAX_DISTANCE, MIN_QUALITY, distances, read_hashes

    listed, places = read_hashes(file)
    compared, matches = list[int](), list[dict[str, Any]]()
    for video_id, frames in _hashed(config):
        compared.append(len(frames))
        good = [(second, digest) for second, digest, quality in frames if quality >= MIN_QUALITY]
        near, back = distances(
            np.array([digest for _, digest in good], np.uint8).reshape(-1, 32), listed
        )
        if seconds := [good[row][0] for row in np.flatnonzero(near <= MAX_DISTANCE)]:
            rows = sorted(
                (int(back[row]), *places[row]) for row in np.flatnonzero(back <= MAX_DISTANCE)
            )
            lines = [{"line": line, "label": label, "distance": bits} for bits, line, label in rows]
            found = {
                "video_id": video_id,
                "frames": len(seconds),
                "share": len(seconds) / len(frames),
            }
            matches.append(found | {"seconds": seconds, "distance": rows[0][0], "lines": lines})
    matches.sort(key=lambda one: (one["distance"], -one["frames"]))
    looked = f"{counted(sum(compared), 'frame')} of {counted(len(compared), 'video')}"
    text = [
        f"{counted(len(matches), 'video')} with a picture of {file} ({len(listed):,} "
        f"hashes), among {looked}"
    ]
    for one in matches:
        first, last = (clock(one["seconds"][end]) for end in (0, -1))
        part = f"{counted(one['frames'], 'frame')} ({100 * one['share']:.0f} %), {first}-{last}"
        text.append(f"{one['distance']:>4} bits  {one['video_id']}: {part}")
        text += [
            f"{at['distance']:>12} bits  line {at['line']}  {at['label']}" for at in one["lines"]
        ]
    result = {
        "list": str(file),
        "hashes": len(listed),
        "videos": len(compared),
        "frames": sum(compared),
    }
    show(result | {"matches": matches}, text=text)


def _hashed(config: Path, video_ids: Collection[str] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Videos of the collection, all or those of these ids, and second, hash and quality of each of
    their stored frames."""
    from hapvr.data.manifest import collection_keys, shard_keys
    from hapvr.steps.videos import open_frames
    from hapvr.video.frames import decode_jpegs
    from hapvr.video.pdq import pdq

    project = open_project(config)
    for key in collection_keys(project.root, shard_keys(project.root)):
        if not project.root.exists(project.shard("frames", key).index_name):
            warnings.warn(
                f"shard {key} has no frames yet and is left out; `hapvr sample` makes them"
            )
            continue
        shard = open_frames(project, key)
        wanted = [
            video_id for video_id in shard.video_ids if not video_ids or video_id in video_ids
        ]
        with progress_bar(key) as progress:
            for number, video_id in enumerate(wanted):
                progress(number, len(wanted))
                stored = shard.read(video_id)
                hashed = (pdq(decode_jpegs([jpeg])[0]) for jpeg in stored.jpegs)
                yield (
                    video_id,
                    [
                        (second, *one)
                        for second, one in zip(stored.timestamps_s, hashed, strict=True)
                    ],
                )
