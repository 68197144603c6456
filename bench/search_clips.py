"""Features for `bench/search.py`: real clips at one frame per second, and edited parts of them as queries.

    HAPVR_MEASURE=... python bench/search_clips.py --clips FOLDER --out FOLDER [--config configs/measure.yaml]
                                                   [--whitening DATA_ROOT]

Queries are cut between the seconds at which the collection was sampled, as nobody's copies keep the phase. Clips that share
footage with a longer one are left out. OUTSIDERS clips are for queries alone: donors of pictures in pictures, and what lies
around a copied part; no video of the collection may hold them, or finding it would not be wrong. Regions are those of the
configuration's backbone, whitened on the clips, or with the whitening of a data root, which a network that was trained there
needs.
"""

import argparse
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hapvr.config_file import load_config
from hapvr.corpus.edits import edit_video
from hapvr.errors import VideoError
from hapvr.features.backbone import Backbone, center_crop, load_backbone
from hapvr.features.whitening import fit_whitening, load_whitening
from hapvr.seeding import numpy_rng
from hapvr.storage.filesystem import DataRoot
from hapvr.video.decode import sample_frames

KINDS = ("low_bitrate", "crop", "tight_crop", "flip", "heavy_color", "text", "blur", "video_in_video",
         "picture_in_picture", "crop_hue_contrast")  # fmt: skip
SPEEDS = {"slower": 0.75, "faster": 1.5}
"""Kinds that change nothing but the speed."""

LENGTHS_S = (3, 5, 10, 30)
CLIPS_PER_LENGTH = 20
OUTSIDERS = 50
FPS = 5
PHASE = 2
"""Of FPS frames a second, the one that queries are cut at; the collection has the first."""

MAX_LIKENESS = 0.4
"""Mean over the frames of a clip of their best cosine with another clip; 0.7 and more where one is cut from the other, and
below 0.35 otherwise."""

QUERY_JPEG_QUALITY = 70


def sources(folder: Path) -> list[Path]:
    files = [path for name in ("videos", "pile") for path in sorted((folder / name).iterdir())]
    return [path for path in files if path.suffix in (".mp4", ".mkv", ".webm")]


def through_jpeg(frames: np.ndarray) -> np.ndarray:
    """What coarse coding loses."""
    coded = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG", quality=QUERY_JPEG_QUALITY)
        coded.append(np.asarray(Image.open(file)))
    return np.stack(coded)


def at_crop_size(frames: np.ndarray, backbone: Backbone, short_side_px: int) -> torch.Tensor:
    """[N, 3, crop, crop] as sampling and cropping give it."""
    height, width = frames.shape[1:3]
    scale = short_side_px / min(height, width)
    size = (max(round(width * scale), backbone.crop_px), max(round(height * scale), backbone.crop_px))
    resized = np.stack([np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR)) for frame in frames])
    return center_crop(torch.from_numpy(resized).permute(0, 3, 1, 2), backbone.crop_px)


@torch.inference_mode()
def regions(frames: np.ndarray, backbone: Backbone, short_side_px: int) -> torch.Tensor:
    crops = at_crop_size(frames, backbone, short_side_px)
    return torch.cat([backbone.regions(crops[start : start + 32]) for start in range(0, len(crops), 32)])


def distinct(clips: dict[str, np.ndarray]) -> list[str]:
    """Names of clips, whitened regions [T, R, C] each, without those that share footage with a longer one."""
    frames = {name: one.reshape(len(one), -1).astype(np.float32) for name, one in clips.items()}
    frames = {name: one / np.linalg.norm(one, axis=1, keepdims=True) for name, one in frames.items()}
    kept: list[str] = []
    for name in sorted(clips, key=lambda name: (-len(clips[name]), name)):
        likeness = [float((frames[name] @ frames[other].T).max(axis=1).mean()) for other in kept]
        if max(likeness, default=0.0) < MAX_LIKENESS:
            kept.append(name)
    return sorted(kept)


def copied(frames: np.ndarray, first_s: int, length_s: int, speed: float) -> np.ndarray:
    """A part of a clip of FPS frames per second, at one frame per second of a copy that shows it at this speed."""
    rows = first_s * FPS + PHASE + np.arange(round(length_s / speed)) * FPS * speed
    return frames[rows.round().astype(int)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/measure.yaml"))
    parser.add_argument("--clips", type=Path, required=True, help="holds videos/ and pile/")
    parser.add_argument("--whitening", type=Path, metavar="DATA_ROOT")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    backbone = load_backbone(config.backbone)
    side = config.sampling.short_side_px
    clips: dict[str, np.ndarray] = {}
    for path in sources(arguments.clips):
        try:
            clips[path.name] = sample_frames(path, fps=FPS, short_side_px=side, max_frames=FPS * 60).frames
        except VideoError as error:
            sys.stderr.write(f"{path.name}: {error}\n")
    collection = {name: regions(frames[::FPS], backbone, side) for name, frames in clips.items()}
    whitening = (
        load_whitening(DataRoot(arguments.whitening))
        if arguments.whitening
        else fit_whitening(torch.cat(list(collection.values())).flatten(0, 1), dims=config.whitening.dims)
    )
    halves = {name: whitening.apply(one).half().numpy() for name, one in collection.items()}
    names = distinct(halves)
    outsiders = sorted(str(one) for one in numpy_rng(0, "outsiders").permutation(names)[:OUTSIDERS])
    names = [name for name in names if name not in outsiders]
    sys.stderr.write(f"{len(clips)} clips, {len(names)} for the collection\n")
    rows, queries = [], []
    for length in LENGTHS_S:
        long_enough = [name for name in names if len(collection[name]) > length]
        chosen = numpy_rng(length, "clips").permutation(long_enough)[:CLIPS_PER_LENGTH]
        for name in sorted(str(one) for one in chosen):
            rng = numpy_rng(0, "query", name, length)
            first = int(rng.integers(len(collection[name]) - length))
            donor = clips[str(rng.choice(outsiders))][::FPS]
            for kind in (*KINDS, *SPEEDS):
                edited = copied(clips[name], first, length, SPEEDS.get(kind, 1.0))
                if kind in KINDS:
                    edited = edit_video(kind, edited, donor=donor, fps=1.0, rng=numpy_rng(1, kind, name, length))
                queries.append(whitening.apply(regions(through_jpeg(edited), backbone, side)))
                rows.append({"kind": kind, "length_s": length, "clip": name, "first_s": first})
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.savez(arguments.out / "collection.npz", **{name: halves[name] for name in (*names, *outsiders)})
    np.savez(arguments.out / "queries.npz", **{str(number): one.half().numpy() for number, one in enumerate(queries)})
    (arguments.out / "queries.json").write_text(json.dumps({"outsiders": outsiders, "queries": rows}))
    sys.stderr.write(f"{len(rows)} queries, {sum(map(len, queries))} frames\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
