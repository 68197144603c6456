"""The model card of a version: data, weights, settings, metrics with intervals, calibration, limits; Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from hapvr.config import Config, TrainConfig
from hapvr.config_file import load_config
from hapvr.markdown import markdown_table
from hapvr.model.settings import NetworkSettings
from hapvr.model.vvs.settings import VvsSettings
from hapvr.provenance import environment
from hapvr.scorer.calibration import Calibration, CalibrationCheck
from hapvr.stages.calibration import FRAME_QUANTILE, ModelCalibration
from hapvr.stages.evaluation import BASELINE, TRAINED
from hapvr.stages.project import Project
from hapvr.stages.segment_scores import SegmentScores, segments_markdown
from hapvr.stages.summary import video_status
from hapvr.stages.training import TrainingRun
from hapvr.storage.manifest import read_manifest
from hapvr.storage.shards import STATUS_OK
from hapvr.train.run_folder import CONFIG_NAME, read_record

DIGEST_CHARACTERS = 12
MAX_DIGESTS = 30


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
    record = read_record(run.folder)
    parts = [
        f"# Model card: {project.config.tracking.registered_model}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, as far as the labels below go, "
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
        calibration_markdown(calibrated, checks),
        "## Segments",
        _segments(segments),
        "## Limits",
        _bullets(_limits(project, record, scores, calibrated)),
        "## ONNX",
        _onnx(onnx),
        "## Use",
        _use(project),
        "## Origin",
        _bullets(_origin(run, record, tags)),
    ]
    return "\n\n".join(parts) + "\n"


def card_summary(
    scores: Mapping[str, Mapping[str, Any]], calibrated: ModelCalibration, checks: Sequence[CalibrationCheck]
) -> str:
    """The card's numbers alone, for the version's page."""
    parts = ["### Metrics", _metrics(scores), "### Calibration", calibration_markdown(calibrated, checks)]
    return "\n\n".join(parts)


def calibration_markdown(calibrated: ModelCalibration, checks: Sequence[CalibrationCheck]) -> str:
    """Paragraphs and tables, or why there is no calibration. checks: on benchmarks, may be empty."""
    fitted = calibrated.calibration
    if fitted is None:
        return f"None: {calibrated.reason}. The column `probability` is empty."
    source = fitted.source
    marks = source.get("marks", {})
    marked = f", with {marks['matches']} and {marks['others']} that people marked" if marks.get("used") else ""
    return "\n\n".join(
        [
            f"Fitted on the pairs of {source['benchmark']}: {fitted.num_matches} matches (labels {', '.join(source['labels'])}) "
            f"and {fitted.num_others} others{marked}. P(match) = 1 / (1 + exp(-({fitted.slope:.4g} x similarity "
            f"{fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these same pairs.",
            f"Probabilities and thresholds hold where {100 * fitted.prior:.1f} % of the pairs that are asked about match, as "
            "there. Where matches are rarer both are too optimistic; `Calibration.probability(similarity, prior=...)` "
            "corrects for it.",
            _thresholds(fitted),
            *(_held_out(fitted, checks) if checks else []),
        ]
    )


def _thresholds(fitted: Calibration) -> str:
    rows = [
        (
            f"{row.precision:g}",
            f"{row.similarity:.4f}" if row.similarity is not None else "not reached",
            f"{row.found:.3f} (at least {row.lower:.3f})",
            f"{row.recall:.3f}",
            f"{row.num_matches} / {row.num_pairs}",
        )
        for row in fitted.thresholds
    ]
    return markdown_table(("wanted precision", "similarity from", "precision found", "recall", "matches / pairs"), rows)


def _held_out(fitted: Calibration, checks: Sequence[CalibrationCheck]) -> list[str]:
    """The thresholds on pairs that they were not chosen on."""
    briers = "; ".join(
        f"{check.name} {check.brier:.4f} ({check.num_matches} matches, {check.num_others} others)" for check in checks
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
    return [
        f"On pairs that it was not fitted on, weighted so that {100 * fitted.prior:.1f} % match there too: Brier score {briers}.",
        markdown_table(("benchmark", "wanted precision", "measured precision", "recall", "matches / pairs"), rows),
    ]


def _data(project: Project, record: Mapping[str, Any]) -> str:
    status = video_status(project).join(
        read_manifest(project.root).select("video_id", "source", "split"), on="video_id", how="left"
    )
    counts = (
        status.group_by("source", "split")
        .agg(pl.len().alias("videos"), (pl.col("status") == STATUS_OK).sum().alias("usable"))
        .sort("source")
    )
    digests = list(record["data_digests"].items())
    shown = [(name, f"`{value[:DIGEST_CHARACTERS]}`") for name, value in digests[:MAX_DIGESTS]]
    if len(digests) > MAX_DIGESTS:
        shown.append((f"and {len(digests) - MAX_DIGESTS} more", "data/lineage.json of the MLflow run"))
    return "\n\n".join(
        [
            markdown_table(
                ("source", "split", "videos", "usable"), counts.select("source", "split", "videos", "usable").rows()
            ),
            f"Trained on {len(record['shards'])} shards of the training split.",
            markdown_table(("data", "SHA-256"), shown),
        ]
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
    """Of the training; the project's may have changed since."""
    train = config.train
    rows = [
        ("family", train.network.family),
        ("frames per second", f"{config.sampling.fps:g}"),
        ("frames of a video that are looked at", f"the first {config.sampling.max_frames}"),
        ("crop", f"{config.backbone.crop_px} px"),
        ("values per region", config.whitening.dims),
        ("steps, videos per step", f"{train.steps}, {train.batch_videos}"),
        *_family_settings(train),
        ("learning rate", f"{train.optimizer.learning_rate:g}"),
        ("seed", train.seed),
    ]
    return markdown_table(("setting", "value"), rows)


def _family_settings(train: TrainConfig) -> list[tuple[str, object]]:
    """What the family of the network adds."""
    network, objective, contrast = train.network, train.objective, train.contrast
    if isinstance(network, NetworkSettings):
        return [
            ("top-k rates, regions and frames", f"{network.spatial_rate:g}, {network.temporal_rate:g}"),
            ("frame AP loss", f"{objective.frame_ap_loss}, weight {objective.frame_ap_weight:g}"),
            ("video AP loss", f"{objective.video_ap_loss}, weight {objective.video_ap_weight:g}"),
            ("InfoNCE weight", f"{objective.infonce_weight:g}"),
        ]
    if isinstance(network, VvsSettings):
        return [
            ("modules", ", ".join(network.modules()) or "none"),
            ("margin of the triplets", f"{network.objective.margin:g}"),
        ]
    return [
        ("encoder layers, heads", f"{network.layers}, {network.heads}"),
        ("videos are compared by", f"one vector per {network.level}"),
        ("loss", contrast.loss),
    ]


def _metrics(scores: Mapping[str, Mapping[str, Any]]) -> str:
    if not scores:
        return "None: the configuration names no benchmark."
    rows = []
    for name, data in scores.items():
        results = data["results"]
        for task, value in results[TRAINED]["metrics"].items():
            details = results[TRAINED]["tasks"][task]
            rows.append(
                (
                    name,
                    task,
                    details["metric"],
                    _percent(results[BASELINE], task),
                    _percent(results[TRAINED], task),
                    f"{100 * (value - results[BASELINE]['metrics'][task]):+.2f}",
                    f"{details['num_queries']} / {details['num_relevant']}",
                )
            )
    head = ["benchmark", "task", "metric", BASELINE, "this model", "difference", "queries / relevant pairs"]
    policies = sorted({data["results"][TRAINED]["policy"] for data in scores.values()})
    return (
        f"In percent, with 95 % bootstrap intervals over queries; missing videos under the {' and '.join(policies)} policy.\n\n"
        + markdown_table(head, rows)
    )


def _segments(segments: Mapping[str, SegmentScores]) -> str:
    if not segments:
        return "Not measured: no benchmark of the configuration knows the true times of its copies."
    return "\n\n".join(
        [
            "How well the times of copied parts are found; docs/search.md explains the columns.",
            *(f"### {name}\n\n{segments_markdown(one)}" for name, one in segments.items()),
        ]
    )


def _percent(result: Mapping[str, Any], task: str) -> str:
    interval = result["intervals"].get(task)
    spread = f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]" if interval else ""
    return f"{100 * result['metrics'][task]:.2f}{spread}"


def _limits(
    project: Project, record: Mapping[str, Any], scores: Mapping[str, Any], calibrated: ModelCalibration
) -> list[str]:
    random = [part for part, weights in record["weights"].items() if weights["source"] == "random"]
    notes = []
    if random:
        notes.append(
            f"**The {' and '.join(random)} weights are random**, because the published ones could not be had or were not "
            "wanted: this model shows that the chain works, and no more."
        )
    notes.append(f"Measured on {', '.join(scores) or 'no benchmark'} only; nothing is known of other kinds of video.")
    generated = [source.name for source in project.config.sources if source.kind == "demo_corpus"]
    if generated:
        notes.append(f"{', '.join(generated)} is a generated corpus; real videos are more varied.")
    made = [source.name for source in project.config.sources if source.kind == "own_videos"]
    if made:
        notes.append(
            f"The benchmarks of {', '.join(made)} hold edited copies made by this package, so other footage of the same "
            "incident and edits of other kinds are not tested."
        )
    notes.append("Sound is not used. Pictures are centre-cropped.")
    if calibrated.calibration is not None and calibrated.calibration.frame_threshold is not None:
        notes.append(
            f"Segments need consecutive frames whose similarity is above {calibrated.calibration.frame_threshold:.3f} of a frame "
            f"with itself, which {100 * FRAME_QUANTILE:.0f} % of the irrelevant validation pairs have not; they run forward "
            "in both videos and are exact to one sampled frame."
        )
    else:
        notes.append("Segments use a frame threshold that was not fitted on data.")
    return notes


def _onnx(onnx: Mapping[str, Any]) -> str:
    if "files" not in onnx:
        return f"None: {onnx['reason']}. `hapvr score` needs the full installation for this model."
    check = onnx["check"]
    rows = [
        (f"onnx/{name}", f"{said['bytes'] / 1e6:.1f} MB", f"`{said['sha256']}`") for name, said in onnx["files"].items()
    ]
    return "\n\n".join(
        [
            f"The frozen network with its whitening, and the similarity network, in opset {onnx['opset']} for videos of any "
            f"length. On {check['pairs_of_frames']} pairs of sampled frames and {check['pairs_of_features']} pairs of stored "
            f"features, similarities of ONNX Runtime and torch differ by {check['largest_difference']:.1g} at most.",
            markdown_table(("file", "size", "SHA-256"), rows),
        ]
    )


def _use(project: Project) -> str:
    name = project.config.tracking.registered_model
    return (
        "```\n"
        f"hapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments\n"
        f"mlflow models serve -m models:/{name}@champion --host 127.0.0.1 --env-manager local\n"
        "```\n\n"
        "Columns `query` and `reference`, or `references` with a list; parameters `segments`, `precision` and lower limits. A "
        "video that cannot be read is a row with an error. HAPVR_ALLOWED_ROOTS names the folders that a server may read "
        "(unset: all), HAPVR_ALLOWED_HOSTS the hosts it may fetch from (unset: none)."
    )


def _origin(run: TrainingRun, record: Mapping[str, Any], tags: Mapping[str, str]) -> list[str]:
    made_by = ", ".join(f"{library} {number}" for library, number in record["environment"].items())
    registered_by = environment()["hapvr"]
    return [
        f"MLflow run {run.mlflow_run_id}",
        *(f"{name}: {value}" for name, value in sorted(tags.items())),
        f"trained with {made_by}; registered with hapvr {registered_by}",
    ]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
