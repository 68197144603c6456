"""The model card of a version: data, weights, settings, metrics with intervals, calibration, limits; Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from hapvr.config import Config
from hapvr.config_file import load_config
from hapvr.data.manifest import read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.provenance import environment
from hapvr.registry.runs import flat
from hapvr.registry.versions import LINEAGE_FILE, data_digest
from hapvr.scorer.calibration import CalibrationCheck
from hapvr.steps.calibration import FRAME_QUANTILE, ModelCalibration
from hapvr.steps.evaluation import BASELINE, TRAINED
from hapvr.steps.project import Project
from hapvr.steps.segment_scores import SegmentScores, segments_markdown
from hapvr.steps.summary import video_status
from hapvr.steps.training import TrainingRun
from hapvr.tables import markdown_table
from hapvr.train.run_folder import CONFIG_NAME, read_record

DIGEST_CHARACTERS = 12


def model_card(
    project: Project,
    run: TrainingRun,
    *,
    scores: Mapping[str, Mapping[str, Any]],
    segments: Mapping[str, SegmentScores],
    calibrated: ModelCalibration,
    checks: Sequence[CalibrationCheck],
    tags: Mapping[str, str],
    onnx: Mapping[str, Any],
) -> str:
    """The card of the run's model. scores: benchmark -> what scores.json says; segments: by benchmark; checks: of the
    calibration on benchmarks; tags: of the registration; onnx: see `write_bundle`."""
    record, name = read_record(run.folder), project.config.tracking.registered_model
    made_by = ", ".join(f"{library} {number}" for library, number in record["environment"].items())
    origin = [f"MLflow run {run.mlflow_run_id}", *(f"{tag}: {value}" for tag, value in sorted(tags.items()))]
    origin.append(f"trained with {made_by}; registered with hapvr {environment()['hapvr']}")
    parts = [
        f"# Model card: {name}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, where the labels below cover it, "
        "other footage of the same scene or incident. Trained without labels (HAP-VR, Liu et al., ACM MM 2024).",
        "## Data",
        _data(project, record),
        "## Weights",
        _weights(record),
        "## Settings",
        _settings(load_config(run.folder / CONFIG_NAME)),
        "## Metrics",
        _metrics(scores),
        "## Calibration",
        _calibration(calibrated, checks),
        "## Segments",
        "How well the times of copied parts are found; docs/search.md explains the columns."
        if segments
        else "Not measured: no benchmark of the configuration knows the true times of its copies.",
        *(f"### {benchmark}\n\n{segments_markdown(one)}" for benchmark, one in segments.items()),
        "## Limits",
        _bullets(_limits(project, record, scores, calibrated)),
        "## ONNX",
        _onnx(onnx),
        "## Use",
        f"```\nhapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments\n"
        f"mlflow models serve -m models:/{name}@champion --host 127.0.0.1 --env-manager local\n```",
        "Columns `query` and `reference`, or `references` with a list; parameters `segments`, `precision` and lower limits. A "
        "video that cannot be read is a row with an error. HAPVR_ALLOWED_ROOTS names the folders that a server may read "
        "(unset: all), HAPVR_ALLOWED_HOSTS the hosts it may fetch from (unset: none).",
        "## Origin",
        _bullets(origin),
    ]
    return "\n\n".join(parts) + "\n"


def _calibration(calibrated: ModelCalibration, checks: Sequence[CalibrationCheck]) -> str:
    """Paragraphs and tables, or why there is no calibration. checks: on benchmarks, may be empty."""
    fitted = calibrated.calibration
    if fitted is None:
        return f"None: {calibrated.reason}. The column `probability` is empty."
    source, prior = fitted.source, f"{100 * fitted.prior:.1f} %"
    marks = source.get("marks", {})
    marked = f", with {marks['matches']} and {marks['others']} that people marked" if marks.get("used") else ""
    thresholds = [
        (
            f"{row.precision:g}",
            f"{row.similarity:.4f}" if row.similarity is not None else "not reached",
            f"{row.found:.3f} (at least {row.lower:.3f})",
            f"{row.recall:.3f}",
            f"{row.num_matches} / {row.num_pairs}",
        )
        for row in fitted.thresholds
    ]
    parts = [
        f"Fitted on the pairs of {source['benchmark']}: {fitted.num_matches} matches (labels {', '.join(source['labels'])}) "
        f"and {fitted.num_others} others{marked}. P(match) = 1 / (1 + exp(-({fitted.slope:.4g} x similarity "
        f"{fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these same pairs.",
        f"Probabilities and thresholds hold where {prior} of the pairs that are asked about match, as there. Where matches are "
        "rarer both are too optimistic; `Calibration.probability(similarity, prior=...)` corrects for it.",
        markdown_table(
            ("wanted precision", "similarity from", "precision found", "recall", "matches / pairs"), thresholds
        ),
    ]
    if checks:
        briers = "; ".join(
            f"{check.name} {check.brier:.4f} ({check.num_matches} matches, {check.num_others} others)"
            for check in checks
        )
        rows = [
            (
                check.name,
                f"{row.wanted:g}",
                "no pair" if row.precision is None else f"{row.precision:.3f}",
                f"{row.recall:.3f}",
                f"{row.num_matches} / {row.num_pairs}",
            )
            for check in checks
            for row in check.thresholds
        ]
        parts += [
            f"On pairs that it was not fitted on, weighted so that {prior} match there too: Brier score {briers}.",
            markdown_table(("benchmark", "wanted precision", "measured precision", "recall", "matches / pairs"), rows),
        ]
    return "\n\n".join(parts)


def _data(project: Project, record: Mapping[str, Any]) -> str:
    manifest = read_manifest(project.root).select("video_id", "source", "split")
    counts = (
        video_status(project)
        .join(manifest, on="video_id", how="left")
        .group_by("source", "split")
        .agg(pl.len().alias("videos"), (pl.col("status") == STATUS_OK).sum().alias("usable"))
        .sort("source")
    )
    return (
        f"{markdown_table(counts.columns, counts.rows())}\n\nTrained on {len(record['shards'])} shards of the training split, "
        f"whose digests are in {LINEAGE_FILE} of the MLflow run; all together have {data_digest(record['data_digests'])}."
    )


def _weights(record: Mapping[str, Any]) -> str:
    rows = [
        (
            part,
            weights["architecture"],
            weights["source"],
            weights.get("precision", "float32"),
            f"`{weights['sha256'][:DIGEST_CHARACTERS]}`",
        )
        for part, weights in record["weights"].items()
    ]
    return markdown_table(("network", "architecture", "weights", "precision", "SHA-256"), rows)


def _settings(config: Config) -> str:
    """The settings of the training; the project's may have changed since. Numbers and choices only: no path, no address."""
    train = config.train
    losses = train.objective if train.network.family == "similarity" else train.contrast
    rows = {
        "frames per second": f"{config.sampling.fps:g}",
        "frames of a video that are looked at": f"the first {config.sampling.max_frames}",
        "crop": f"{config.backbone.crop_px} px",
        "values per region": config.whitening.dims,
        "steps, videos per step": f"{train.steps}, {train.batch_videos}",
        "learning rate": f"{train.optimizer.learning_rate:g}",
        "seed": train.seed,
    } | flat({"network": train.network.model_dump(mode="json"), "loss": losses.model_dump(mode="json")})
    return markdown_table(("setting", "value"), list(rows.items()))


def _metrics(scores: Mapping[str, Mapping[str, Any]]) -> str:
    if not scores:
        return "None: the configuration names no benchmark."
    rows = []
    for name, data in scores.items():
        trained, baseline = (data["results"][row] for row in (TRAINED, BASELINE))
        for task, value in trained["metrics"].items():
            details = trained["tasks"][task]
            rows.append(
                (
                    name,
                    task,
                    details["metric"],
                    _percent(baseline, task),
                    _percent(trained, task),
                    f"{100 * (value - baseline['metrics'][task]):+.2f}",
                    f"{details['num_queries']} / {details['num_relevant']}",
                )
            )
    head = ("benchmark", "task", "metric", BASELINE, "this model", "difference", "queries / relevant pairs")
    policies = sorted({data["results"][TRAINED]["policy"] for data in scores.values()})
    return (
        f"In percent, with 95 % bootstrap intervals over queries; missing videos under the {' and '.join(policies)} policy.\n\n"
        + markdown_table(head, rows)
    )


def _percent(result: Mapping[str, Any], task: str) -> str:
    interval = result["intervals"].get(task)
    spread = f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]" if interval else ""
    return f"{100 * result['metrics'][task]:.2f}{spread}"


def _limits(
    project: Project, record: Mapping[str, Any], scores: Mapping[str, Any], calibrated: ModelCalibration
) -> list[str]:
    random = [part for part, weights in record["weights"].items() if weights["source"] == "random"]
    named = {
        kind: ", ".join(source.name for source in project.config.sources if source.kind == kind)
        for kind in ("demo_corpus", "own_videos")
    }
    fitted = calibrated.calibration
    notes = {
        f"**The {' and '.join(random)} weights are random**, because the published ones could not be had or were not wanted: "
        "this model shows that the chain works, and no more.": bool(random),
        f"Measured on {', '.join(scores) or 'no benchmark'} only; nothing is known of other kinds of video.": True,
        f"{named['demo_corpus']} is a generated corpus; real videos are more varied.": bool(named["demo_corpus"]),
        f"The benchmarks of {named['own_videos']} hold edited copies made by this package, so other footage of the same "
        "incident and edits of other kinds are not tested.": bool(named["own_videos"]),
        "Sound is not used. Pictures are centre-cropped.": True,
    }
    segments = "Segments use a frame threshold that was not fitted on data."
    if fitted is not None and fitted.frame_threshold is not None:
        segments = (
            f"Segments need consecutive frames whose similarity is above {fitted.frame_threshold:.3f} of a frame with itself, "
            f"which {100 * FRAME_QUANTILE:.0f} % of the irrelevant validation pairs have not; they run forward in both videos "
            "and are exact to one sampled frame."
        )
    return [*(note for note, holds in notes.items() if holds), segments]


def _onnx(onnx: Mapping[str, Any]) -> str:
    if "files" not in onnx:
        return f"None: {onnx['reason']}. `hapvr score` needs the full installation for this model."
    check = onnx["check"]
    return (
        f"The frozen network with its whitening, and the similarity network, in opset {onnx['opset']} for videos of any "
        f"length. On {check['pairs_of_frames']} pairs of sampled frames and {check['pairs_of_features']} pairs of stored "
        f"features, similarities of the ONNX files and torch differ by {check['largest_difference']:.1g} at most."
    )


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
