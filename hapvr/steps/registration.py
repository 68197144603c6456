"""Step 10: a trained model as a version in MLflow's registry, with its model card (asset
`registered_model`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from hapvr.data.manifest import read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.files import digest_of
from hapvr.networks.copies import ORIGIN
from hapvr.networks.encoder import open_encoder
from hapvr.networks.packaged import packaged_origin
from hapvr.networks.settings import COPY_NETWORKS
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import (
    LINEAGE_FILE,
    WARNING_TAG,
    WEIGHTS_TAG,
    BundleRun,
    register_bundle,
)
from hapvr.scorer.bundle_writer import complete_bundle, random_weights_warning
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.shipped import shipped_calibration
from hapvr.steps.alerts import Concern, tell
from hapvr.steps.baseline import ensure_baseline, searches_text
from hapvr.steps.calibration import calibrate, calibration_figure, fit_on_validation
from hapvr.steps.evaluation import BASELINE, TRAINED, Decision, make_decision, stored_scores
from hapvr.steps.export import export_onnx, write_run_bundle
from hapvr.steps.project import Project
from hapvr.steps.quality import video_status
from hapvr.steps.training import TrainingRun, require_trained_on, tracker_of, trained_run
from hapvr.tables import markdown_table
from hapvr.train.run_folder import read_record


@dataclass(frozen=True)
class Registration:
    """name, version: in the registry; decision: of the gate; bundle: the folder that was packaged;
    target: mean of the target metrics, in [0, 1]; card: Markdown; warning: why not to believe it,
    or ""; figure: of the calibration, None without one."""

    run: TrainingRun
    name: str
    version: int
    decision: Decision
    bundle: Path
    target: float
    card: str
    warning: str
    figure: Figure | None


def make_registered_model(
    project: Project,
    *,
    run: str = "",
    tags: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> Registration:
    """Calibrate, bundle, log and register a trained model; it becomes champion if the benchmarks
    say so.

    run: of the training; "" for the current one. The untrained baseline is registered before it.
    Raises DataError if a benchmark of the configuration has no scores of this model."""
    ensure_baseline(project, progress=progress)
    training, tags = trained_run(project, run), tags or {}
    scores = {
        name: stored_scores(project, training, name)
        for name in project.config.evaluation.benchmarks
    }
    target = sum(data["target_means"][TRAINED] for data in scores.values()) / max(len(scores), 1)
    fitted = calibrate(project, training)
    calibration = fitted if isinstance(fitted, Calibration) else None
    encoder = open_encoder(project.config.backbone, project.config.device)
    present = {"backbone": encoder.settings, "whitening": load_whitening(project.root).sha256}
    require_trained_on(training, present, what="the bundle would be made")
    record, tracker = read_record(training.folder), tracker_of(project)
    onnx = export_onnx(project, training.folder, encoder=encoder)
    warning = random_weights_warning(weights["source"] for weights in record["weights"].values())
    made_by = {"mlflow_run_id": training.mlflow_run_id, "run_key": training.key, **tags}
    parts = {"provenance": made_by, "calibration": calibration, "warning": warning}
    bundle = write_run_bundle(project, training.folder, encoder, onnx, **parts)
    # The evidence of copies is of the frame network, whatever was trained on it.
    shipped = shipped_calibration(project.config.backbone)
    evidence = fit_on_validation(project, bundle) if shipped is None else shipped.evidence
    card = model_card(
        project,
        training,
        scores=scores,
        calibration=fitted,
        evidence=evidence,
        tags=tags,
        onnx=onnx,
        warning=warning,
    )
    complete_bundle(bundle, evidence=evidence, card=card)
    # The data is what the training read, which may be less than what is there by now.
    lineage = {
        WEIGHTS_TAG: encoder.identity.source,
        **tags,
        "data.digest": digest_of(record["data_digests"]),
    }
    lineage |= {WARNING_TAG: warning} if warning else {}
    name = project.config.tracking.registered_model
    record_of_run = BundleRun(
        key=training.key, name=f"{project.config.name}-{training.key}", params={}, tags=lineage
    )
    version = register_bundle(tracker, name, bundle, record_of_run, target=target)
    figure = None if calibration is None else calibration_figure(calibration)
    if figure is not None:
        tracker.client.log_figure(training.mlflow_run_id, figure, "figures/calibration.png")
    decision = make_decision(project, training, version)
    event = "model_promoted" if decision.promoted else "model_refused"
    tell(
        project,
        Concern(
            event, f"registration/{name}/{version}", f"{name} version {version}: {decision.reason}"
        ),
    )
    return Registration(training, name, version, decision, bundle, target, card, warning, figure)


def model_card(
    project: Project,
    run: TrainingRun,
    *,
    scores: Mapping[str, Mapping[str, Any]],
    calibration: Calibration | str,
    evidence: EvidenceModel | str,
    tags: Mapping[str, str],
    onnx: Mapping[str, Any],
    warning: str,
) -> str:
    """The card of the run's model, in Markdown. scores: benchmark -> what scores.json says;
    calibration, evidence: of pairs and of searches, or why there is none; tags: of the
    registration; onnx: see `BundleParts`; warning: its first line, "" for none."""
    record, name = read_record(run.folder), project.config.tracking.registered_model
    networks = record["weights"]
    made_by = ", ".join(f"{library} {number}" for library, number in record["environment"].items())
    manifest = read_manifest(project.root).select("video_id", "source", "split")
    usable = (pl.col("status") == STATUS_OK).sum().alias("usable")
    videos = video_status(project).join(manifest, on="video_id", how="left")
    counts = videos.group_by("source", "split").agg(pl.len().alias("videos"), usable).sort("source")
    weights = [
        (
            part,
            one["architecture"],
            one["source"],
            one.get("precision", "float32"),
            one["sha256"][:12],
        )
        for part, one in networks.items()
    ]
    metrics = [
        (
            *(benchmark, task, details["metric"]),
            *(_percent(data["results"][row], task) for row in (BASELINE, TRAINED)),
            f"{details['num_queries']} / {details['num_relevant']}",
        )
        for benchmark, data in scores.items()
        for task, details in data["results"][TRAINED]["tasks"].items()
    ]
    without_torch = f"The model needs torch, since it has no ONNX files: {onnx.get('reason')}."
    if "files" in onnx:
        difference = f"{onnx['check']['largest_difference']:.1g}"
        without_torch = (
            f"Similarities without torch, by ONNX files, differed from torch's "
            f"by {difference} at most."
        )
    parts = [
        warning and f"**Warning: {warning}.**",
        f"# Model card: {name}, training run {run.key}",
        "Similarity of two videos in [-1, 1] from their pictures alone: copies, edits and, "
        "where the labels below cover it, "
        f"other footage of the same scene or incident. {_taught(project)}",
        f"## Data\n\n{markdown_table(counts.columns, counts.rows())}",
        f"Trained on {len(record['shards'])} shards of the training split, whose digests are "
        f"in {LINEAGE_FILE} of the MLflow "
        f"run; all together have {digest_of(record['data_digests'])}.",
        "## Weights",
        markdown_table(("network", "architecture", "weights", "precision", "SHA-256"), weights),
        *sorted(
            {
                ORIGIN
                if one["architecture"] in COPY_NETWORKS
                else packaged_origin(one["architecture"])
                for one in networks.values()
                if one["source"] == "packaged"
            }
        ),
        f"## Metrics\n\nIn percent, with 95 % bootstrap intervals over queries; policy "
        f"{project.config.evaluation.policy}.",
        markdown_table(
            ("benchmark", "task", "metric", BASELINE, "this model", "queries / relevant pairs"),
            metrics,
        ),
        "## Calibration",
        *_calibration(calibration),
        f"## Searches\n\n{searches_text(evidence)}",
        f"## Limits\n\n- Measured on {', '.join(scores) or 'no benchmark'} only; nothing is "
        "known of other kinds of video. Generated "
        "videos are less varied than real ones, and benchmarks of one's own videos hold "
        "edits made by this package alone.\n"
        "- Sound is not used. Pictures are centre-cropped.\n"
        f"- Segments run forward in both videos and are exact to one sampled frame.\n- "
        f"{without_torch}",
        f"## Use\n\n`hapvr score a.mp4 b.mp4 --model models:/{name}@champion --segments`, or "
        "as docs/serving.md says. "
        "HAPVR_ALLOWED_ROOTS names the folders that a server may read (unset: all), "
        "HAPVR_ALLOWED_HOSTS the hosts it may fetch "
        "from (unset: none).",
        f"## Origin\n\nMLflow run {run.mlflow_run_id}, which has all settings; trained with "
        f"{made_by}. " + "; ".join(f"{tag}: {value}" for tag, value in sorted(tags.items())),
    ]
    return "\n\n".join(filter(None, parts)).rstrip() + "\n"


def _taught(project: Project) -> str:
    """A sentence: what the network learned from."""
    if project.config.train.source == "labelled_pairs":
        return "Trained on labelled pairs of videos that share footage."
    return "Trained without labels (HAP-VR, Liu et al., ACM MM 2024)."


def _percent(result: Mapping[str, Any], task: str) -> str:
    interval = result["intervals"].get(task)
    spread = f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]" if interval else ""
    return f"{100 * result['metrics'][task]:.2f}{spread}"


def _calibration(fitted: Calibration | str) -> list[str]:
    """Paragraphs and a table, or why there is no calibration."""
    if isinstance(fitted, str):
        return [f"None: {fitted}. The column `probability` is empty."]
    rows = [
        (
            *(
                f"{one.precision:g}",
                "not reached" if one.similarity is None else f"{one.similarity:.4f}",
            ),
            *(f"{one.found:.3f}", f"{one.recall:.3f}", f"{one.num_matches} / {one.num_pairs}"),
        )
        for one in fitted.thresholds
    ]
    return [
        f"Fitted on the pairs of {fitted.source['benchmark']}: {fitted.num_matches} matches "
        "(labels "
        f"{', '.join(fitted.source['labels'])}) and {fitted.num_others} others. P(match) = 1 "
        f"/ (1 + exp(-({fitted.slope:.4g} x "
        f"similarity {fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these "
        "same pairs.",
        f"Probabilities and thresholds hold where {100 * fitted.prior:.1f} % of the pairs "
        "that are asked about match, as there. "
        "Where matches are rarer both are too optimistic; `--prior` corrects for it.",
        markdown_table(
            ("wanted precision", "similarity from", "precision", "recall", "matches / pairs"), rows
        ),
    ]
