"""Quality, memory and time of each family alone and in two stages, on stored features.

    python -m bench.coarse_to_fine measure --features DATA_ROOT --benchmark FOLDER --fine MODEL \
        --coarse tca=MODEL --coarse vvs=MODEL [--candidates 5 10 20] [--rounds 5] --table FILE.csv
    python -m bench.coarse_to_fine draw docs/coarse_to_fine.csv docs/coarse_to_fine.png

MODEL is the folder of a network or a bundle. Embeddings are made before the clock starts, as a search stores them. Every
round runs all rows in turn; times are processor milliseconds per query, medians over rounds. Bytes per video are those of
the stored embeddings in float16, of binary codes in bits; two stages store both. `measure` writes the table and prints it;
`draw` makes the frontier of a table: a metric over the time per query.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.scoring import similarity_table
from hapvr.benchmark.two_stages import first_stage, packed_videos, rerank
from hapvr.markdown import markdown_table
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.packed import PackedVideos
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.similarity_model import load_similarity_model
from hapvr.stages.benchmark_features import BenchmarkFeatures, shards_with_features
from hapvr.storage.features import FeatureStore
from hapvr.storage.filesystem import DataRoot

HALF_BYTES = 2


@dataclass
class Row:
    """One way to rank. candidates: of `first` that the similarity network scores again; None: none, `first` is alone."""

    first: str
    candidates: int | None
    score: Callable[[], Tensor]
    num_bytes: float
    seconds: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A network with the embeddings of all videos."""

    network: VideoNetwork
    packed: PackedVideos

    @property
    def num_bytes(self) -> float:
        """Per video, in float16."""
        return self.packed.frames.numel() * HALF_BYTES / len(self.packed.lengths)

    @property
    def is_vector(self) -> bool:
        return set(self.packed.lengths) == {1}


def rows_of(
    coarse: dict[str, Stage], fine: Stage, places: tuple[Sequence[int], Sequence[int]], candidates: Sequence[int]
) -> list[Row]:
    """Every family alone, its binary codes, and both before the fine stage."""
    queries, database = places

    def alone(stage: Stage, codes: bool) -> Tensor:
        return first_stage(stage.packed, queries, database, network=stage.network, codes=codes)

    def both(stage: Stage, codes: bool, count: int) -> Tensor:
        return rerank(alone(stage, codes), fine.packed, queries, database, network=fine.network, candidates=count)

    rows = [Row("similarity network", None, lambda: alone(fine, False), fine.num_bytes)]
    for name, stage in coarse.items():
        for codes in (False, True) if stage.is_vector else (False,):
            title = f"{name}, binary codes" if codes else name
            size = stage.num_bytes / HALF_BYTES / 8 if codes else stage.num_bytes
            rows.append(Row(title, None, lambda s=stage, c=codes: alone(s, c), size))  # type: ignore[misc]
            for count in candidates:
                again = lambda s=stage, c=codes, k=count: both(s, c, k)  # noqa: E731
                rows.append(Row(title, count, again, size + fine.num_bytes))
    return rows


def measure(rows: list[Row], definition: BenchmarkDefinition, ids: tuple[list[str], list[str]], rounds: int) -> None:
    """Fill in metrics and seconds."""
    queries, database = ids
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "similarities.parquet"
        for row in rows:
            pl.DataFrame(similarity_table(queries, database, row.score().numpy())).write_parquet(path)
            result = evaluate(definition, path, policy="strict", available=frozenset([*queries, *database]))
            row.metrics = dict(result.metrics)
    for _ in range(rounds):
        for row in rows:
            start = time.process_time()
            row.score()
            row.seconds.append((time.process_time() - start) / len(queries))


def table_of(rows: Sequence[Row]) -> pl.DataFrame:
    """A line for each row: first_stage, candidates, its metrics, bytes_per_video, ms_per_query."""
    return pl.DataFrame(
        [
            {
                "first_stage": row.first,
                "candidates": row.candidates,
                **{name: round(value, 4) for name, value in row.metrics.items()},
                "bytes_per_video": round(row.num_bytes),
                "ms_per_query": float(f"{1000 * statistics.median(row.seconds):.3g}"),
            }
            for row in rows
        ]
    )


def frontier(table: pl.DataFrame, metric: str) -> Figure:
    """The metric over milliseconds per query; a line joins a first stage alone with its numbers of candidates."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for name in table["first_stage"].unique(maintain_order=True):
        own = table.filter(first_stage=name)
        axes.plot(own["ms_per_query"], own[metric], marker="o", markersize=4, label=name)
    axes.set(xscale="log", xlabel="milliseconds per query (one core)", ylabel=metric)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize="small", title="first stage", frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--features", required=True)
    measuring.add_argument("--benchmark", required=True)
    measuring.add_argument("--fine", type=Path, required=True)
    measuring.add_argument("--coarse", action="append", default=[], metavar="NAME=MODEL")
    measuring.add_argument("--candidates", type=int, nargs="+", default=[5, 10, 20])
    measuring.add_argument("--rounds", type=int, default=5)
    measuring.add_argument("--table", type=Path, required=True)
    measuring.set_defaults(run=measure_models)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("table", type=Path)
    drawing.add_argument("figure", type=Path)
    drawing.add_argument("--metric", default="DSVR")
    drawing.set_defaults(run=draw)
    options = parser.parse_args()
    options.run(options)


def draw(options: argparse.Namespace) -> None:
    """The frontier of a stored table, as a picture."""
    frontier(pl.read_csv(options.table), options.metric).savefig(options.figure, dpi=100)


def measure_models(options: argparse.Namespace) -> None:
    """Write and print the table of these networks."""
    torch.set_num_threads(1)
    definition, root = load_definition(options.benchmark), DataRoot(options.features)
    reader = BenchmarkFeatures(FeatureStore(root, shards_with_features(root, definition)), definition)
    available = reader.available()
    queries, database = ([v for v in ids if v in available] for ids in (definition.queries, definition.database))
    every = list(dict.fromkeys([*queries, *database]))
    place = {video_id: number for number, video_id in enumerate(every)}
    places = [place[v] for v in queries], [place[v] for v in database]
    models = {name: load_similarity_model(Path(path)) for name, path in (one.split("=", 1) for one in options.coarse)}
    fine_network = load_similarity_model(options.fine).network
    plain = NetworkSettings(attention=False, comparator=False)
    networks = {"mean of all regions": None, **{name: model.network for name, model in models.items()}}
    with torch.inference_mode():
        fine = Stage(fine_network, packed_videos(fine_network, reader, every, "cpu"))
        coarse = {
            name: Stage(network, packed_videos(network, reader, every, "cpu"))
            if network is not None
            else _means(SimilarityNetwork(plain, dims=fine_network.dims), reader, every)
            for name, network in networks.items()
        }
        rows = rows_of(coarse, fine, places, options.candidates)
        measure(rows, definition, (queries, database), options.rounds)
    table = table_of(rows)
    table.write_csv(options.table)
    lines = [["" if value is None else f"{value}" for value in line] for line in table.iter_rows()]
    text = markdown_table(table.columns, lines)
    sys.stdout.write(f"{len(queries)} queries, {len(database)} videos\n\n{text}\n")


def _means(network: SimilarityNetwork, reader: BenchmarkFeatures, ids: Sequence[str]) -> Stage:
    """A vector per video that nothing trained: the mean of all regions of all frames."""
    found = {video_id: features.float().mean((0, 1)) for video_id, features in reader.read(ids)}
    vectors = torch.stack([torch.nn.functional.normalize(found[video_id], dim=0) for video_id in ids])
    return Stage(network, PackedVideos(vectors[:, None], (1,) * len(ids)))


if __name__ == "__main__":
    main()
