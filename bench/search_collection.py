"""Does a search of a project's index rank as exhaustive scoring does? On a benchmark whose videos are in the collection.

    python -m bench.search_collection --config configs/demo.yaml --benchmark DATA_ROOT/corpus/demo-test \
        [--data-root DIR] [--model BUNDLE] [--candidates 10 100] [--leave-out asl]

First the benchmark's queries: mean average precision over its database by task, and how many of the ten videos that
exhaustive scoring ranks first are candidates. Then each edited copy of a query (label ND, or DS if there is none) is a
query: how often is its original, or another copy of it, ranked first? A query never finds itself. A search lists its
candidates; "then by votes" ranks the other videos behind them, as papers do when they re-rank the first of a list; "with
votes" adds reciprocal ranks by scores and by votes (Cormack et al., SIGIR 2009). Queries whose id has the text of
`--leave-out` are left out; their videos stay. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.metrics import average_precision
from hapvr.scorer.scorer import EmbeddedVideo
from hapvr.search.match import Match
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher, Wanted

COPIES = ("ND", "DS")
# of Cormack et al.: how much the first ranks count
FUSION = 60
Rankings = Mapping[str, Sequence[str]]


def exhaustive(
    searcher: Searcher, embedded: Mapping[str, EmbeddedVideo], queries: Sequence[str]
) -> dict[str, list[str]]:
    """Every other video of the collection by the network's similarity, best first."""
    names = list(embedded)
    found = {}
    for query in queries:
        scores = searcher.scorer.similarities(embedded[query], list(embedded.values()))
        found[query] = [
            names[place] for place in np.argsort(-np.asarray(scores), kind="stable") if names[place] != query
        ]
    return found


def searched(searcher: Searcher, queries: Sequence[str]) -> dict[str, list[str]]:
    return {query: [match.reference for match in matches(searcher, query)] for query in queries}


def by_votes(searcher: Searcher, queries: Sequence[str]) -> dict[str, list[str]]:
    """Candidates in the order of the shortlist's votes, the most first; those with as many in the order of the search."""
    voted = {query: sorted(matches(searcher, query), key=lambda match: -match.votes) for query in queries}
    return {query: [match.reference for match in ranked] for query, ranked in voted.items()}


def matches(searcher: Searcher, query: str) -> tuple[Match, ...]:
    return searcher.search_id(query, Wanted(top=10_000, segments=False)).matches


def fused(*rankings: Sequence[str]) -> list[str]:
    """The videos of the first ranking by their summed reciprocal ranks in all."""
    ranks = [{name: rank for rank, name in enumerate(ranking, start=1)} for ranking in rankings]
    return sorted(rankings[0], key=lambda name: -sum(1 / (FUSION + one[name]) for one in ranks))


def precision(ranked: Sequence[str], relevant: set[str]) -> float:
    """Average precision by steps; a relevant video that is not ranked counts as missed."""
    ranks = np.flatnonzero([name in relevant for name in ranked]) + 1
    return average_precision(ranks, num_relevant=len(relevant))


def by_task(definition: BenchmarkDefinition, rankings: Rankings) -> dict[str, float]:
    database = set(definition.database)
    labels = definition.labels.rows()
    values = {}
    for task in definition.tasks:
        if task.metric != "mAP" or task.exclusion is not None:
            continue
        relevant: dict[str, set[str]] = {}
        for query, reference, label in labels:
            if label in task.positives and query in rankings:
                relevant.setdefault(query, set()).add(reference)
        scores = [
            precision([name for name in rankings[query] if name in database], wanted)
            for query, wanted in relevant.items()
        ]
        values[task.name] = round(100 * float(np.mean(scores)), 2)
    return values


def first(copies: Mapping[str, str], rankings: Rankings) -> dict[str, float]:
    """copies: copy -> its original. Share of copies, in percent."""
    own = [rankings[copy][:1] == [original] for copy, original in copies.items()]
    family = [
        bool(rankings[copy]) and original in (rankings[copy][0], copies.get(rankings[copy][0]))
        for copy, original in copies.items()
    ]
    return {"original": round(100 * float(np.mean(own)), 1), "original or copy": round(100 * float(np.mean(family)), 1)}


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--model")
    parser.add_argument("--candidates", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--leave-out", metavar="TEXT")
    options = parser.parse_args(arguments)
    definition = load_definition(options.benchmark)
    root = {} if options.data_root is None else {"data_root": options.data_root}

    def opened(candidates: int) -> Searcher:
        # places for whole videos are a third of all, as by default
        changes = {"search.candidates": candidates, "search.video_candidates": candidates // 3}
        return Searcher.open(Project.open(options.config, overrides=root | changes), model=options.model)

    searcher = opened(options.candidates[0])
    asked = [one for one in definition.queries if options.leave_out is None or options.leave_out not in one]
    rows = [row for row in definition.labels.iter_rows() if row[0] in asked]
    copy = next(label for label in COPIES if any(row[2] == label for row in rows))
    copies = {reference: query for query, reference, label in rows if label == copy}
    queries = [one for one in (*asked, *copies) if searcher.has(one)]
    embedded = {one: searcher.scorer.embed(searcher.read_id(one).features) for one in searcher.video_ids()}
    wanted = exhaustive(searcher, embedded, queries)
    rankings: dict[str, Rankings] = {"exhaustive": wanted}
    results: dict[str, Any] = {"videos": len(embedded), "queries": len(asked), "copies": len(copies)}
    votes = by_votes(opened(len(embedded)), queries)
    rankings["votes alone"] = votes
    for candidates in options.candidates:
        found = searched(opened(candidates), queries)
        rankings[f"search, {candidates} candidates"] = found
        rankings[f"search, {candidates} candidates, then by votes"] = {
            query: [*found[query], *(name for name in votes[query] if name not in found[query])] for query in queries
        }
        rankings[f"search, {candidates} candidates, with votes"] = {
            query: fused(found[query], votes[query]) for query in queries
        }
    for name, ranking in rankings.items():
        kept = [len(set(wanted[one][:10]) & set(ranking[one])) / 10 for one in asked]
        results[name] = by_task(definition, ranking) | {
            "top 10 of exhaustive": round(100 * float(np.mean(kept)), 2),
            "ranked first": first(copies, ranking),
        }
    sys.stdout.write(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
