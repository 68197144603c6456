"""What `hapvr run` and the verbs of the chain show of a step that has run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hapvr.commands.terminal import counted

if TYPE_CHECKING:
    from hapvr.benchmark.protocol import EvaluationResult
    from hapvr.steps.registration import Registration
    from hapvr.steps.search_index import IndexUpdate
    from hapvr.steps.video_manifest import ManifestResult


def row_of(step: str, shard: str, result: Any) -> dict[str, Any]:
    """What a step did with a shard. ok, failed, rows: of a step whose shards have rows; others tell
    what they made."""
    row: dict[str, Any] = {"step": step, "shard": shard}
    if hasattr(result, "num_ok"):
        row["ok"] = result.num_ok
        row["failed"] = result.num_failed
        row["rows"] = result.num_rows
    elif step in _FIELDS:
        row |= _FIELDS[step](result)

    row["was_finished"] = not getattr(result, "done", True)
    return row


def lines_of(row: Mapping[str, Any]) -> list[str]:
    """What is shown of a row of `row_of`: a line; of scores also a table for each benchmark."""
    step = row["step"]
    line = f"{step} {row['shard']}".rstrip()
    if "ok" in row:
        line += f": {row['ok']} videos, {row['failed']} failed, {row['rows']} rows"
    elif step in _TEXTS:
        line += f": {_TEXTS[step](row)}"

    if row["was_finished"]:
        line += " (was finished)"
    return [line, *_table_lines(row.get("scores", {}))]


def _manifest_fields(result: ManifestResult) -> dict[str, Any]:
    return {"num_shards": len(result.shards), "num_new": len(result.new_shards)}


def _manifest_text(row: Mapping[str, Any]) -> str:
    return f"{counted(row['num_shards'], 'shard')}, {row['num_new']} of them new"


def _score_fields(
    result: Mapping[str, tuple[Mapping[str, EvaluationResult], object]],
) -> dict[str, Any]:
    scores = {}
    for benchmark, (results, _) in result.items():
        scores[benchmark] = {row: scored.metrics for row, scored in results.items()}

    return {"scores": scores}


def _score_text(row: Mapping[str, Any]) -> str:
    return ", ".join(row["scores"]) or "evaluation.benchmarks names no benchmark"


def _table_lines(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """The metrics of each benchmark, a row for each network."""
    from hapvr.benchmark.report import metrics_markdown

    lines = []
    for benchmark, metrics in scores.items():
        lines += [f"{benchmark}:", *metrics_markdown(metrics).splitlines()]

    return lines


def _registration_fields(result: Registration) -> dict[str, Any]:
    return {
        "name": result.name,
        "version": result.version,
        "champion": result.decision.promoted,
        "decision": result.decision.reason,
    }


def _registration_text(row: Mapping[str, Any]) -> str:
    return f"models:/{row['name']}/{row['version']} {row['decision']}"


def _index_fields(result: IndexUpdate) -> dict[str, Any]:
    return {
        "videos": result.status.videos,
        "frames": result.status.frames,
        "recall": result.recall,
        "passed": result.passed,
    }


def _index_text(row: Mapping[str, Any]) -> str:
    text = f"{counted(row['videos'], 'video')}, {row['frames']} frames, recall {row['recall']:.3f}"
    return text if row["passed"] else f"{text}: too low, so the index before it answers"


_FIELDS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "video_manifest": _manifest_fields,
    "benchmark_scores": _score_fields,
    "registered_model": _registration_fields,
    "search_index": _index_fields,
}
"""Of steps without rows."""
_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "video_manifest": _manifest_text,
    "benchmark_scores": _score_text,
    "registered_model": _registration_text,
    "search_index": _index_text,
}
