"""How much of exhaustive scoring does a search keep, by kind of edit and by length of the copied part?

    python bench/search.py --clips FOLDER [--model BUNDLE] [--videos 220] [--seconds 300] [--around 0] [--out FILE.json]

--clips: what `bench/search_clips.py` wrote. Each video of the collection lasts --seconds and holds at most one clip that
queries are cut from; the rest is footage of other clips. What lies around the copied part of a query (--around) is footage
of outsiders, which no video of the collection shows. --model: a trained one, with its calibration; without one the network
is untrained, its scores are TopK-Chamfer similarities of the real features, and its calibration is fitted on these pairs.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch

from hapvr.config_file import load_config
from hapvr.features.backbone import load_backbone
from hapvr.features.whitening import fit_whitening
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import Calibration, fit_calibration
from hapvr.scorer.scorer import EmbeddedVideo, VideoScorer
from hapvr.scorer.segments import Clock, best_run
from hapvr.scorer.torch_networks import TorchNetworks
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.descriptors import frame_descriptors, video_descriptor
from hapvr.search.engine import SearchEngine
from hapvr.search.index import FrameIndex
from hapvr.search.settings import SearchSettings
from hapvr.search.vectors import VECTOR
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.video.settings import SamplingConfig

TOP = (1, 5, 10, 20, 50, 100)
EXHAUSTIVE_GROUP = 24
UNRELATED_PAIRS = 100
SURE = 0.9
"""Probability from which on an answer counts as sure."""

PHASE_S = 0.4
"""By how much the queries of `bench/search_clips.py` lie after whole seconds."""


@dataclass(frozen=True)
class Reference:
    regions: np.ndarray
    clip: str
    start_s: int


def footage(clips: dict[str, np.ndarray], names: Sequence[str], count: int, rng: np.random.Generator) -> np.ndarray:
    """[count, R, C]: stretches of these clips, each of less than 20 s. They are real ones, since frames that are mixed of
    two clips are more like all others."""
    parts, total = [], 0
    while total < count:
        clip = clips[names[int(rng.integers(len(names)))]]
        length = min(int(rng.integers(5, 20)), len(clip))
        start = int(rng.integers(len(clip) - length + 1))
        parts.append(clip[start : start + length])
        total += length
    return np.concatenate(parts)[:count]


@dataclass(frozen=True)
class Clips:
    """What `bench/search_clips.py` wrote. rows: of the queries. asked: clips that they are cut from. outsiders: clips for
    queries alone."""

    folder: Path
    regions: dict[str, np.ndarray]
    rows: list[dict[str, Any]]
    outsiders: list[str]

    @classmethod
    def load(cls, folder: Path) -> "Clips":
        record = json.loads((folder / "queries.json").read_text())
        with np.load(folder / "collection.npz") as stored:
            regions = {name: stored[name] for name in sorted(stored.files)}
        return cls(folder, regions, record["queries"], record["outsiders"])

    @property
    def asked(self) -> set[str]:
        return {row["clip"] for row in self.rows}


def collection(clips: Clips, *, videos: int, seconds: int) -> dict[str, Reference]:
    """The first videos hold a clip each that may be asked for, the others none."""
    names = [name for name in clips.regions if name not in clips.outsiders]
    fillers = [name for name in names if name not in clips.asked]
    made = {}
    for number in range(videos):
        rng = numpy_rng(number, "collection")
        regions = footage(clips.regions, fillers, seconds, rng)
        clip, start = "", 0
        if number < len(names):
            clip = names[number]
            own = clips.regions[clip][:seconds]
            start = int(rng.integers(seconds - len(own) + 1))
            regions[start : start + len(own)] = own
        made[f"in/{number:04d}"] = Reference(regions, clip, start)
    return made


class InMemory:
    """The videos of `hapvr.search.fine`, from memory."""

    def __init__(self, videos: dict[str, Reference]) -> None:
        self._videos = videos

    def times(self, video_id: str) -> Sequence[float]:
        return [float(second) for second in range(len(self._videos[video_id].regions))]

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        return SampledFeatures(self._videos[video_id].regions[first:last], Clock(tuple(times_s[first:last])))

    def whole(self, video_id: str, scorer: VideoScorer) -> EmbeddedVideo:
        times = self.times(video_id)
        return scorer.embed(self.read(video_id, times, 0, len(times)))


@dataclass(frozen=True)
class Query:
    """kind, length_s: of the copied part. shown_s: when it begins in the query. reference: the video that holds its original,
    from the second `original_s` on."""

    kind: str
    length_s: int
    features: SampledFeatures
    shown_s: int
    reference: str
    original_s: float


def queries(clips: Clips, videos: dict[str, Reference], *, around_s: int) -> list[Query]:
    place = {reference.clip: video_id for video_id, reference in videos.items() if reference.clip}
    found = []
    with np.load(clips.folder / "queries.npz") as stored:
        for number, row in enumerate(clips.rows):
            if row["clip"] not in place:
                continue
            rng = numpy_rng(number, "around")
            around = [footage(clips.regions, clips.outsiders, around_s // 2, rng) if around_s else [] for _ in range(2)]
            regions = np.concatenate([part for part in (around[0], stored[str(number)], around[1]) if len(part)])
            reference = place[row["clip"]]
            found.append(
                Query(
                    row["kind"],
                    row["length_s"],
                    SampledFeatures(regions, Clock(tuple(float(t) for t in range(len(regions))))),
                    around_s // 2,
                    reference,
                    videos[reference].start_s + row["first_s"] + PHASE_S,
                )
            )
    return found


def vectors_column(vectors: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), vectors.shape[1])


def build_index(folder: Path, videos: dict[str, Reference], scorer: VideoScorer, settings: SearchSettings) -> None:
    ids, seconds, frames, means = [], [], [], []
    memory = InMemory(videos)
    for video_id in videos:
        embedded = memory.whole(video_id, scorer)
        described = frame_descriptors(scorer.networks.vectors(embedded.regions))
        vectors, kept = described.vectors, described.kept
        ids += [video_id] * int(kept.sum())
        seconds += np.flatnonzero(kept).tolist()
        frames.append(vectors[kept])
        means.append(video_descriptor(vectors[kept]))
    index = FrameIndex.create(folder, frames[0].shape[1], {}, settings=settings.index)
    index.replace_shard(
        "in-00000",
        pa.table(
            {"video_id": ids, "second": pa.array(seconds, pa.float32()), VECTOR: vectors_column(np.concatenate(frames))}
        ),
        pa.table({"video_id": list(videos), VECTOR: vectors_column(np.stack(means))}),
    )
    index.optimise()


def exhaustive(
    queries: Sequence[EmbeddedVideo], videos: dict[str, Reference], scorer: VideoScorer
) -> npt.NDArray[np.float32]:
    """[Q, N] similarities of whole queries with whole videos."""
    columns, names, memory = [], list(videos), InMemory(videos)
    for start in range(0, len(names), EXHAUSTIVE_GROUP):
        group = [memory.whole(name, scorer) for name in names[start : start + EXHAUSTIVE_GROUP]]
        columns.append(np.array([scorer.similarities(query, group) for query in queries], np.float32))
    return np.concatenate(columns, axis=1)


def probability_of(engine: SearchEngine, similarity: float) -> float:
    calibration = engine.scorer.calibration
    return 0.0 if calibration is None else calibration.probability(similarity)


def measured(query: Query, embedded: EmbeddedVideo, row: np.ndarray | None, names: Sequence[str], engine: SearchEngine,
             variant: str, *, search: bool) -> dict[str, Any]:  # fmt: skip
    """What one query gives, beside its exhaustive similarities [N] if there are any. search: false for the shortlist alone."""
    began = time.perf_counter()
    candidates = engine.shortlist(embedded)
    shortlist_ms = 1000 * (time.perf_counter() - began)
    listed = [candidate.video_id for candidate in candidates]
    voted = sorted((one for one in candidates if one.votes), key=lambda one: -one.votes)
    values: dict[str, Any] = {
        "variant": variant,
        "kind": query.kind,
        "length_s": query.length_s,
        "listed_at": listed.index(query.reference) + 1 if query.reference in listed else None,
        "ap_votes": precision([one.video_id for one in voted], query.reference),
        "shortlist_ms": shortlist_ms,
    }
    if row is not None:
        order = [names[place] for place in np.argsort(-row, kind="stable")]
        values["top10_listed"] = sum(name in listed for name in order[:10]) / 10
        values["ap_exhaustive"] = precision(order, query.reference)
        if query.reference in order[:10]:
            values["original_listed"] = float(query.reference in listed)
    if not search:
        return values
    result = engine.rank(embedded)
    began = time.perf_counter()
    segments = {one.video_id: engine.segments(embedded, one) for one in result.candidates[:20]}
    segments_s = time.perf_counter() - began
    probability = {one.video_id: probability_of(engine, one.similarity) for one in result.candidates}
    values |= {
        "sure": float(probability.get(query.reference, 0.0) >= SURE),
        "wrongly_sure": float(any(p >= SURE for name, p in probability.items() if name != query.reference)),
        "ap_search": precision([one.video_id for one in result.candidates], query.reference),
        "fine_ms": 1000 * result.timings_s["fine"],
        "segments_ms": 1000 * segments_s,
    }
    if query.reference in segments:
        values["has_segment"] = float(bool(segments[query.reference]))
        for segment in segments[query.reference][:1]:
            values["begin_error_s"] = abs(segment.reference_start_s - query.original_s)
            values["end_error_s"] = abs(segment.reference_end_s - query.original_s - query.length_s)
    return values


def precision(ranked: Sequence[str], wanted: str) -> float:
    """Average precision of a ranking in which one video is relevant."""
    return 1 / (ranked.index(wanted) + 1) if wanted in ranked else 0.0


def summary(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    listed = pl.col("listed_at")
    shares = (
        "top10_listed",
        "original_listed",
        "ap_exhaustive",
        "ap_votes",
        "ap_search",
        "sure",
        "wrongly_sure",
        "has_segment",
    )
    rates = [name for name in shares if name in rows]
    medians = ("begin_error_s", "end_error_s", "shortlist_ms", "fine_ms", "segments_ms")
    return (
        rows.group_by(by)
        .agg(
            pl.len().alias("n"),
            *(((listed <= top).fill_null(False).mean() * 100).alias(f"R@{top}") for top in TOP),
            pl.col(rates).mean() * 100,
            pl.col([name for name in medians if name in rows]).median(),
        )
        .sort(by)
    )


def calibrated(scorer: VideoScorer, wanted: Sequence[Query], scores: np.ndarray, names: Sequence[str],
               embedded: Sequence[EmbeddedVideo], videos: dict[str, Reference]) -> Calibration:  # fmt: skip
    """As `hapvr.stages.calibration` fits it, on these pairs: the threshold of segments lies above unrelated pairs."""
    truth = np.array([[name == query.reference for name in names] for query in wanted])
    rng = numpy_rng(0, "unrelated pairs")
    runs = []
    memory = InMemory(videos)
    for _ in range(UNRELATED_PAIRS):
        number, name = int(rng.integers(len(wanted))), names[int(rng.integers(len(names)))]
        if name != wanted[number].reference:
            runs.append(best_run(scorer.relative_similarity(embedded[number], memory.whole(name, scorer))))
    return fit_calibration(
        scores[truth], scores[~truth], source={}, frame_threshold=min(float(np.quantile(runs, 0.95)), 0.98)
    )


def untrained(clips: Clips, config: Path) -> VideoScorer:
    """Without a comparator, so that its scores are TopK-Chamfer similarities of the stored features."""
    sample = torch.from_numpy(np.concatenate(list(clips.regions.values()))).flatten(0, 1).float()[:5000]
    dims = sample.shape[-1]
    backbone = load_backbone(load_config(config).backbone)
    return VideoScorer(
        networks=TorchNetworks(
            backbone=backbone,
            whitening=fit_whitening(sample, dims=dims),
            network=SimilarityNetwork(
                NetworkSettings(comparator=False), dims=dims, generator=torch_rng("search")
            ).eval(),
            device="cpu",
        ),
        sampling=SamplingConfig(),
        crop_px=backbone.crop_px,
        batch_frames=32,
        description={},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--model", type=Path, metavar="BUNDLE")
    parser.add_argument("--videos", type=int, default=220)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--around", type=int, default=0, help="seconds of other footage in each query")
    parser.add_argument("--config", type=Path, default=Path("configs/measure.yaml"))
    parser.add_argument("--variant", action="append", default=[], metavar="JSON", help="of the section `search`")
    parser.add_argument("--every", type=int, default=1, help="take each n-th query")
    parser.add_argument("--shortlist", action="store_true", help="measure the shortlist alone")
    parser.add_argument("--search", action="store_true", help="measure searches alone, by the calibration of --model")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    clips = Clips.load(arguments.clips)
    videos = collection(clips, videos=arguments.videos, seconds=arguments.seconds)
    scorer = load_bundle(arguments.model) if arguments.model else untrained(clips, arguments.config)
    wanted = queries(clips, videos, around_s=arguments.around)[:: arguments.every]
    embedded = [scorer.embed(query.features) for query in wanted]
    names = list(videos)
    began = time.perf_counter()
    scores: Sequence[np.ndarray | None] = [None] * len(wanted)
    if not arguments.shortlist and not arguments.search:
        scored = exhaustive(embedded, videos, scorer)
        scorer.calibration = scorer.calibration or calibrated(scorer, wanted, scored, names, embedded, videos)
        scores = list(scored)
    exhaustive_s = time.perf_counter() - began
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hapvr-search-") as folder:
        built: dict[str, Path] = {}
        for variant in arguments.variant or ["{}"]:
            settings = SearchSettings.model_validate(json.loads(variant))
            kind = settings.index.model_dump_json(include={"min_indexed_rows", "code_bits"})
            if kind not in built:
                built[kind] = Path(folder) / str(len(built))
                build_index(built[kind], videos, scorer, settings)
            engine = SearchEngine(
                scorer=scorer,
                index=FrameIndex.open(built[kind], settings=settings.index),
                videos=InMemory(videos),
                num_videos=len(videos),
                blank=np.zeros((0, 0), np.float32),
                settings=settings,
            )
            rows += [
                measured(query, one, row, names, engine, variant, search=not arguments.shortlist)
                for query, one, row in zip(wanted, embedded, scores, strict=True)
            ]
    table = pl.DataFrame(rows, infer_schema_length=None)
    if arguments.out:
        table.write_json(arguments.out)
    pl.Config.set_tbl_rows(200).set_tbl_cols(40).set_tbl_width_chars(230).set_float_precision(1)
    pl.Config.set_fmt_str_lengths(60).set_tbl_hide_column_data_types(True)
    for by in (("variant",), ("variant", "length_s"), ("variant", "kind")):
        sys.stdout.write(f"{summary(table, *by)}\n")
    sys.stdout.write(f"{len(videos)} videos; exhaustive: {1000 * exhaustive_s / max(len(wanted), 1):.0f} ms a query\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
