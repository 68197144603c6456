"""Does a search of a project's index rank as exhaustive scoring does? On benchmarks whose videos are in the collection.

    python -m bench.search_collection --config configs/demo.yaml --benchmark DATA_ROOT/corpus/demo-test \
        [--data-root DIR] [--model BUNDLE ...] [--candidates 10 100] [--leave-out asl]

First the benchmarks' queries: mean average precision over their database by task, and how many of the ten videos that
exhaustive scoring ranks first are candidates. Then each edited copy of a query (label ND, or DS if there is none) is a
query: how often is its original, or another copy of it, ranked first? A query never finds itself. A search lists its
candidates; "then the shortlist" ranks the other videos behind them in the order of the shortlist, as papers do when they
re-rank the first of a list; "with votes" adds reciprocal ranks by scores and by votes (Cormack et al., SIGIR 2009). The
loss is that of mAP against exhaustive scoring over the queries of all benchmarks, by the first task of each, with the
interval that holds 95 % of resamples of the queries. Queries whose id has the text of `--leave-out` are left out; their
videos stay. With several models, each gets an index of its own first, and the loss is also that of the mean over models.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hapvr.benchmark.definition import BenchmarkDefinition, Task
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.metrics import average_precision, bootstrap_interval, bootstrap_mean_ap, query_weights
from hapvr.scorer.scorer import EmbeddedVideo
from hapvr.seeding import numpy_rng
from hapvr.stages.project import Project
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.searcher import Searcher, SearchOptions

COPIES = ("ND", "DS")
# of Cormack et al.: how much the first ranks count
FUSION = 60
EXHAUSTIVE = "exhaustive"
RESAMPLES = 10_000
Rankings = Mapping[str, Sequence[str]]


class Benchmark:
    """A benchmark's queries that are asked, and which videos of its database are relevant to each by task."""

    def __init__(self, definition: BenchmarkDefinition, *, leave_out: str | None) -> None:
        self.name = definition.name
        self.queries = [one for one in definition.queries if leave_out is None or leave_out not in one]
        self._database = set(definition.database)
        self._rows = [row for row in definition.labels.iter_rows() if row[0] in self.queries]
        self.tasks = [task for task in definition.tasks if task.metric == "mAP" and task.exclusion is None]

    def copies(self) -> dict[str, str]:
        """Copy -> its original."""
        label = next(label for label in COPIES if any(row[2] == label for row in self._rows))
        return {reference: query for query, reference, given in self._rows if given == label}

    def precisions(self, task: Task, rankings: Rankings) -> list[float]:
        """Average precision of each query with relevant videos, by steps; one that is not ranked counts as missed."""
        relevant: dict[str, set[str]] = {}
        for query, reference, label in self._rows:
            if label in task.positives and query in rankings:
                relevant.setdefault(query, set()).add(reference)
        values = []
        for query, wanted in relevant.items():
            ranked = [name for name in rankings[query] if name in self._database]
            ranks = np.flatnonzero([name in wanted for name in ranked]) + 1
            values.append(average_precision(ranks, num_relevant=len(wanted)))
        return values


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
    wanted = SearchOptions(top=10_000, segments=False)
    return {query: [match.reference for match in searcher.search_id(query, wanted).matches] for query in queries}


def shortlisted(
    searcher: Searcher, embedded: Mapping[str, EmbeddedVideo], queries: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Candidates in the order of the shortlist, and in that of their votes."""
    order, votes = {}, {}
    for query in queries:
        candidates = searcher.engine.shortlist(embedded[query], allowed=query.__ne__)
        order[query] = [one.video_id for one in candidates]
        votes[query] = [one.video_id for one in sorted(candidates, key=lambda one: -one.votes)]
    return order, votes


def followed(first: Sequence[str], others: Sequence[str]) -> list[str]:
    """One ranking, and behind it what else is in the other."""
    return list(dict.fromkeys([*first, *others]))


def fused(*rankings: Sequence[str]) -> list[str]:
    """The videos of the first ranking by their summed reciprocal ranks in all."""
    ranks = [{name: rank for rank, name in enumerate(ranking, start=1)} for ranking in rankings]
    return sorted(rankings[0], key=lambda name: -sum(1 / (FUSION + one[name]) for one in ranks))


def first(copies: Mapping[str, str], rankings: Rankings) -> dict[str, float]:
    """copies: copy -> its original. Share of copies, in percent."""
    own = [rankings[copy][:1] == [original] for copy, original in copies.items()]
    family = [
        bool(rankings[copy]) and original in (rankings[copy][0], copies.get(rankings[copy][0]))
        for copy, original in copies.items()
    ]
    return {"original": percent(np.mean(own)), "original or copy": percent(np.mean(family))}


def percent(part: float | np.floating[Any]) -> float:
    return round(100 * float(part), 2)


def all_rankings(whole: Searcher, searchers: Mapping[int, Searcher], queries: Sequence[str]) -> dict[str, Rankings]:
    """whole: its shortlist has the whole collection. searchers: candidates of a search -> the searcher."""
    embedded = {one: whole.scorer.embed(whole.read_id(one).features) for one in whole.collection.video_ids()}
    order, votes = shortlisted(whole, embedded, queries)
    rankings: dict[str, Rankings] = {
        EXHAUSTIVE: exhaustive(whole, embedded, queries),
        "votes alone": votes,
        "the shortlist alone": order,
    }
    for candidates, searcher in sorted(searchers.items()):
        found, name = searched(searcher, queries), f"search, {candidates} candidates"
        rankings[name] = found
        rankings[f"{name}, then the shortlist"] = {one: followed(found[one], order[one]) for one in queries}
        rankings[f"{name}, with votes"] = {one: fused(found[one], votes[one]) for one in queries}
    return rankings


def opened(config: Path, changes: Mapping[str, Any], model: str | None, candidates: int) -> Searcher:
    """A search of so many candidates, of which a third may come by whole videos, as by default."""
    counts = {"search.candidates": candidates, "search.video_candidates": candidates // 3}
    return Searcher.open(config, overrides={**changes, **counts}, model=model)


def measured(benchmark: Benchmark, rankings: Mapping[str, Rankings]) -> dict[str, Any]:
    """What each ranking is worth on one benchmark, in percent."""
    rows: dict[str, Any] = {"queries": len(benchmark.queries)}
    for name, ranking in rankings.items():
        best = {one: set(rankings[EXHAUSTIVE][one][:10]) for one in benchmark.queries}
        kept = [len(wanted & set(ranking[one])) / 10 for one, wanted in best.items()]
        tasks = {task.name: percent(np.mean(benchmark.precisions(task, ranking))) for task in benchmark.tasks}
        copies = first(benchmark.copies(), ranking)
        rows[name] = tasks | {"top 10 of exhaustive": percent(np.mean(kept)), "ranked first": copies}
    return rows


def losses(values: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, Any]:
    """values: ranking -> average precision of each query. What each loses against exhaustive scoring, in points."""
    weights = query_weights(len(values[EXHAUSTIVE]), num_samples=RESAMPLES, rng=numpy_rng("queries"))
    found = {}
    for name, per_query in values.items():
        lost = values[EXHAUSTIVE] - per_query
        interval = bootstrap_interval(bootstrap_mean_ap(lost, weights))
        found[name] = {"lost": percent(lost.mean()), "interval": [percent(end) for end in interval]}
    return found


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--benchmark", nargs="+", required=True)
    parser.add_argument("--data-root")
    parser.add_argument("--model", nargs="+")
    parser.add_argument("--candidates", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--leave-out", metavar="TEXT")
    options = parser.parse_args(arguments)
    changes = {} if options.data_root is None else {"data_root": options.data_root}
    benchmarks = [Benchmark(load_definition(one), leave_out=options.leave_out) for one in options.benchmark]
    of_models = []
    for model in options.model or [None]:
        if len(options.model or []) > 1:
            project = Project.open(options.config, overrides=changes)
            update_index(project, search_model(project, model))
        searchers = {count: opened(options.config, changes, model, count) for count in options.candidates}
        num_videos = max(searcher.num_videos for searcher in searchers.values())
        whole = opened(options.config, changes, model, num_videos)
        asked = dict.fromkeys(one for benchmark in benchmarks for one in (*benchmark.queries, *benchmark.copies()))
        rankings = all_rankings(whole, searchers, [one for one in asked if one in whole.collection.shard_of])
        results = {"model": model, "videos": num_videos}
        results |= {benchmark.name: measured(benchmark, rankings) for benchmark in benchmarks}
        per_query = {
            name: np.array([value for one in benchmarks for value in one.precisions(one.tasks[0], ranking)])
            for name, ranking in rankings.items()
        }
        of_models.append(per_query)
        sys.stdout.write(json.dumps(results | {"losses": losses(per_query)}, indent=1) + "\n")
        sys.stdout.flush()
    if len(of_models) > 1:
        means = {name: np.mean([one[name] for one in of_models], axis=0) for name in of_models[0]}
        sys.stdout.write(json.dumps({"models": len(of_models), "losses": losses(means)}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
