"""`hapvr pdq export | match`: hashes of the collection's frames for others, and its videos that
match lists of theirs."""

import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.terminal import (
    ConfigOption,
    Verbs,
    counted,
    open_project,
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
    asked = frozenset(video_ids or ())
    written: dict[str, int] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for video_id, frames in _hashed(config, asked):
            written[video_id] = len(frames)
            for number, (second, digest, quality) in enumerate(frames):
                values = (video_id, number, quality, digest.tobytes().hex(), f"{second:.3f}")
                yield dict(zip(COLUMNS, values, strict=True))

    export_csv(COLUMNS, rows(), out)
    num_frames = sum(written.values())
    missing = sorted(asked - written.keys())
    lines = [f"{counted(num_frames, 'frame')} of {counted(len(written), 'video')} are in {out}"]
    lines += [f"failed   {name}: the collection has no stored frames of it" for name in missing]
    result = {"out": str(out), "videos": len(written), "frames": num_frames, "failed": missing}
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
    from hapvr.video.pdq import read_hashes

    listed, places = read_hashes(file)
    num_frames = 0
    num_videos = 0
    matches: list[dict[str, Any]] = []
    for video_id, frames in _hashed(config):
        num_videos += 1
        num_frames += len(frames)
        match = _match_of(video_id, frames, listed, places)
        if match is not None:
            matches.append(match)

    matches.sort(key=lambda match: (match["distance"], -match["frames"]))

    text = [
        f"{counted(len(matches), 'video')} with a picture of {file} ({len(listed):,} hashes), "
        f"among {counted(num_frames, 'frame')} of {counted(num_videos, 'video')}"
    ]
    for match in matches:
        text += _match_lines(match)
    result = {
        "list": str(file),
        "hashes": len(listed),
        "videos": num_videos,
        "frames": num_frames,
        "matches": matches,
    }
    show(result, text=text)


def _match_of(
    video_id: str, frames: list[Any], listed: Any, places: Sequence[tuple[int, str]]
) -> dict[str, Any] | None:
    """The frames of a video that are near a listed hash, and the lines of these; None for none.
    listed: [N, 32] uint8; places: line and label of each."""
    import numpy as np

    from hapvr.video.pdq import MAX_DISTANCE, MIN_QUALITY, distances

    good = [(second, digest) for second, digest, quality in frames if quality >= MIN_QUALITY]
    digests = np.array([digest for _, digest in good], np.uint8).reshape(-1, 32)
    of_frames, of_listed = distances(digests, listed)
    seconds = [good[row][0] for row in np.flatnonzero(of_frames <= MAX_DISTANCE)]
    if not seconds:
        return None

    near = np.flatnonzero(of_listed <= MAX_DISTANCE).tolist()
    rows = sorted((int(of_listed[row]), *places[row]) for row in near)
    return {
        "video_id": video_id,
        "frames": len(seconds),
        "share": len(seconds) / len(frames),
        "seconds": seconds,
        "distance": rows[0][0],
        "lines": [{"line": line, "label": label, "distance": bits} for bits, line, label in rows],
    }


def _match_lines(match: dict[str, Any]) -> list[str]:
    from hapvr.scorer.segments import clock

    first = clock(match["seconds"][0])
    last = clock(match["seconds"][-1])
    frames = f"{counted(match['frames'], 'frame')} ({100 * match['share']:.0f} %)"
    lines = [f"{match['distance']:>4} bits  {match['video_id']}: {frames}, {first}-{last}"]
    for near in match["lines"]:
        lines.append(f"{near['distance']:>12} bits  line {near['line']}  {near['label']}")
    return lines


def _hashed(config: Path, video_ids: Collection[str] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Videos of the collection, all or those of these ids, and second, hash and quality of each of
    their stored frames."""
    from hapvr.data.manifest import collection_keys, shard_keys
    from hapvr.steps.frames import open_frames
    from hapvr.video.frames import decode_jpegs
    from hapvr.video.pdq import pdq

    project = open_project(config)
    for key in collection_keys(project.root, shard_keys(project.root)):
        if not project.root.exists(project.shard("frames", key).index_name):
            warnings.warn(
                f"shard {key} has no frames yet and is skipped; `hapvr sample` makes them"
            )
            continue

        shard = open_frames(project, key)
        wanted = [name for name in shard.video_ids if not video_ids or name in video_ids]
        with progress_bar(key) as progress:
            for number, video_id in enumerate(wanted):
                progress(number, len(wanted))
                stored = shard.read(video_id)
                frames = []
                for second, jpeg in zip(stored.timestamps_s, stored.jpegs, strict=True):
                    digest, quality = pdq(decode_jpegs([jpeg])[0])
                    frames.append((second, digest, quality))

                yield video_id, frames
