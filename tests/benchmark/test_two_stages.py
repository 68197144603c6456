"""Two stages: what the second sees is ranked by it, all else behind by the first; binary codes by counting bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.benchmark.definition import LABEL_SCHEMA, BenchmarkDefinition
from hapvr.benchmark.definitions.vcdb import COPY, vcdb_tasks
from hapvr.benchmark.scoring import score_benchmark
from hapvr.benchmark.two_stages import NOT_RERANKED, score_in_two_stages
from hapvr.errors import ArgumentError, DataError
from hapvr.model.binary import binary_codes, hamming_similarity
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.model.tca.network import ContextNetwork
from hapvr.model.tca.settings import TcaSettings
from hapvr.seeding import torch_rng

DIMS, VIDEOS, QUERIES = 12, 9, 3


class Features:
    """Videos of different lengths."""

    def __init__(self) -> None:
        rng = torch_rng("two stages")
        self.videos = {
            f"v{number}": F.normalize(torch.randn(3 + number % 4, 9, DIMS, generator=rng), dim=-1)
            for number in range(VIDEOS)
        }

    def available(self) -> set[str]:
        return set(self.videos)

    def digests(self) -> dict[str, str]:
        return {"all": "1"}

    def read(self, video_ids: Sequence[str], *, side: bool = False) -> Iterator[tuple[str, Tensor]]:
        assert not side
        return ((video_id, features) for video_id, features in self.videos.items() if video_id in video_ids)


def definition() -> BenchmarkDefinition:
    videos = tuple(f"v{number}" for number in range(VIDEOS))
    labels = pl.DataFrame([("v0", "v5", COPY)], schema=LABEL_SCHEMA, orient="row")
    return BenchmarkDefinition(
        name="mine", kind="vcdb", queries=videos[:QUERIES], database=videos, labels=labels, tasks=vcdb_tasks([COPY])
    )


def networks() -> tuple[ContextNetwork, SimilarityNetwork]:
    first = ContextNetwork(TcaSettings(heads=4), dims=DIMS, generator=torch_rng("first"))
    return first.eval(), SimilarityNetwork(NetworkSettings(comparator=False), dims=DIMS).eval()


def scores(path: Path) -> Tensor:
    """[Q, N]"""
    table = pl.read_parquet(path).sort("query_id", "reference_id")
    return torch.tensor(table["similarity"].to_list()).view(QUERIES, VIDEOS)


def test_candidates_are_ranked_by_the_second_stage(tmp_path: Path) -> None:
    """Scores of each stage are those that it gives alone; all candidates are the second stage's ranking."""
    first, second = networks()
    reader = Features()
    alone = [
        scores(score_benchmark(network, definition(), reader, tmp_path / f"{name}.parquet"))
        for name, network in (("first", first), ("second", second))
    ]
    found = scores(score_in_two_stages(first, second, definition(), reader, tmp_path / "both.parquet", candidates=4))
    for row in range(QUERIES):
        best = alone[0][row].topk(4).indices
        others = torch.ones(VIDEOS, dtype=torch.bool).index_fill(0, best, False)
        assert torch.allclose(found[row][best], alone[1][row][best], atol=1e-6)
        assert torch.allclose(found[row][others], alone[0][row][others] - NOT_RERANKED, atol=1e-6)
    every = score_in_two_stages(first, second, definition(), reader, tmp_path / "all.parquet", candidates=VIDEOS)
    assert torch.allclose(scores(every), alone[1], atol=1e-6)


def test_codes_count_bits() -> None:
    """Against bits one by one, also where a byte is not full."""
    rng = torch_rng("codes")
    vectors, centre = torch.randn(7, 13, generator=rng), torch.randn(13, generator=rng)
    codes = binary_codes(vectors, centre)
    assert (codes.dtype, codes.shape) == (torch.uint8, (7, 2))
    bits = vectors > centre
    wanted = 1 - 2 * (bits[:, None] != bits[None]).sum(-1) / 13
    assert torch.allclose(hamming_similarity(codes, codes, dims=13), wanted)
    with pytest.raises(ArgumentError, match=r"centre: got \(12,\)"):
        binary_codes(vectors, centre[:12])


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    first, second = networks()
    reader = Features()
    with pytest.raises(ArgumentError, match="candidates: got 0"):
        score_in_two_stages(first, second, definition(), reader, tmp_path / "a", candidates=0)
    with pytest.raises(ArgumentError, match="the first stage has no single vector per video"):
        score_in_two_stages(second, first, definition(), reader, tmp_path / "a", candidates=2, codes=True)
    reader.videos = {"v5": reader.videos["v5"]}
    with pytest.raises(DataError, match="features of 0 queries and 1 database videos"):
        score_in_two_stages(first, second, definition(), reader, tmp_path / "a", candidates=2)


def test_features_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """Values that are not finite would rank a video anywhere."""
    features = Features()
    features.videos["v6"] = features.videos["v6"] * float("nan")
    with pytest.raises(DataError, match="features of v6: some values are not finite"):
        score_in_two_stages(*networks(), definition(), features, tmp_path / "scores", candidates=3)
