"""Step 10: a trained model as a version in MLflow's registry, with its model card (asset
`registered_model`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from hapvr.files import digest_of
from hapvr.model.checkpoint import load_network
from hapvr.networks.encoder import FrameEncoder, open_encoder
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.registry.versions import WARNING_TAG, WEIGHTS_TAG, BundleRun, register_bundle
from hapvr.scorer.bundle_writer import complete_bundle, random_weights_warning
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.plain_networks import UNTRAINED
from hapvr.scorer.shipped import shipped_calibration
from hapvr.steps.alerts import Concern, tell
from hapvr.steps.baseline import ensure_baseline, log_baseline_metrics
from hapvr.steps.calibration import calibrate, calibration_figure, fit_on_validation
from hapvr.steps.evaluation import BASELINE, TRAINED, stored_scores, untrained_network
from hapvr.steps.export import export_onnx, write_run_bundle
from hapvr.steps.gate import Decision, make_decision
from hapvr.steps.model_card import CardFacts, model_card
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, require_trained_on, tracker_of, trained_run
from hapvr.train.run_folder import read_record


@dataclass(frozen=True)
class Registration:
    """A registered model."""

    run: TrainingRun
    name: str
    """in the registry, like `version`"""
    version: int
    decision: Decision
    """of the gate"""
    bundle: Path
    """the folder that was packaged"""
    target: float
    """mean of the target metrics, in [0, 1]"""
    card: str
    """Markdown"""
    warning: str
    """why the model is not to be trusted, or empty"""
    figure: Figure | None
    """of the calibration, None without one"""


def make_registered_model(
    project: Project,
    *,
    run: str = "",
    tags: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> Registration:
    """Calibrate, bundle, log and register a trained model. It becomes champion if it is better on
    the benchmarks. The untrained baseline is registered first.

    run: key of the training; "" for the current one.

    Raises: DataError if a benchmark of the configuration has no scores of this model.
    """
    ensure_baseline(project, progress=progress)
    training = trained_run(project, run)
    encoder = open_encoder(project.config.backbone, project.config.device)
    facts, bundle = _make_bundle(project, training, encoder, tags or {})
    card = model_card(project, training, facts)
    complete_bundle(bundle, evidence=facts.evidence, card=card)

    name = project.config.tracking.registered_model
    target = sum(data["target_means"][TRAINED] for data in facts.scores.values()) / max(
        len(facts.scores), 1
    )
    mlflow_run = BundleRun(
        key=training.key,
        name=f"{project.config.name}-{training.key}",
        params={},
        tags=_lineage(training, encoder, facts),
    )
    version = register_bundle(tracker_of(project), name, bundle, mlflow_run, target=target)
    _log_baseline_scores(project, training, facts)
    figure = _log_calibration(project, training, facts.calibration)
    decision = make_decision(project, training, version)
    _tell_decision(project, name, version, decision)
    return Registration(
        run=training,
        name=name,
        version=version,
        decision=decision,
        bundle=bundle,
        target=target,
        card=card,
        warning=facts.warning,
        figure=figure,
    )


def _make_bundle(
    project: Project, training: TrainingRun, encoder: FrameEncoder, tags: Mapping[str, str]
) -> tuple[CardFacts, Path]:
    """The facts about a trained model, and its bundle, which does not have evidence and card
    yet."""
    scores = {
        name: stored_scores(project, training, name)
        for name in project.config.evaluation.benchmarks
    }
    calibration = calibrate(project, training)
    present = {"backbone": encoder.settings, "whitening": load_whitening(project.root).sha256}
    require_trained_on(training, present, what="the bundle would be made")
    onnx = export_onnx(project, training.folder)
    weights = read_record(training.folder)["weights"]
    warning = random_weights_warning(identity["source"] for identity in weights.values())
    bundle = write_run_bundle(
        project,
        training.folder,
        encoder,
        onnx,
        provenance={
            "mlflow_run_id": training.mlflow_run_id,
            "run_key": training.key,
            **tags,
        },
        calibration=calibration if isinstance(calibration, Calibration) else None,
        warning=warning,
    )
    # Evidence of copies belongs to the frame network, whatever was trained on it.
    shipped = shipped_calibration(project.config.backbone)
    evidence = fit_on_validation(project, bundle) if shipped is None else shipped.evidence
    return CardFacts(scores, calibration, evidence, tags, onnx, warning), bundle


def _log_baseline_scores(project: Project, training: TrainingRun, facts: CardFacts) -> None:
    """Log the benchmark scores of the untrained baseline to its own MLflow run, if the model was
    compared with that very network: one with other rates is not the registered one."""
    network, _ = load_network(training.network_folder)
    if untrained_network(network).settings != UNTRAINED:
        return

    metrics: dict[str, float] = {}
    for name, data in facts.scores.items():
        values = {**data["results"][BASELINE]["metrics"], "mean": data["target_means"][BASELINE]}
        metrics |= {f"{name}/untrained/{task}": value for task, value in values.items()}

    log_baseline_metrics(project, metrics)


def _lineage(training: TrainingRun, encoder: FrameEncoder, facts: CardFacts) -> dict[str, str]:
    """Tags of the version. Its data is what the training read, which may be less than there is
    now."""
    data_digests = read_record(training.folder)["data_digests"]
    lineage = {
        WEIGHTS_TAG: encoder.identity.source,
        **facts.tags,
        "data.digest": digest_of(data_digests),
    }
    if facts.warning:
        lineage[WARNING_TAG] = facts.warning
    return lineage


def _log_calibration(
    project: Project, training: TrainingRun, calibration: Calibration | str
) -> Figure | None:
    """The figure of a calibration, which goes to the MLflow run; None without one."""
    if isinstance(calibration, str):
        return None
    figure = calibration_figure(calibration)
    client = tracker_of(project).client
    client.log_figure(training.mlflow_run_id, figure, "figures/calibration.png")
    return figure


def _tell_decision(project: Project, name: str, version: int, decision: Decision) -> None:
    event = "model_promoted" if decision.promoted else "model_refused"
    text = f"{name} version {version}: {decision.reason}"
    tell(project, Concern(event, f"registration/{name}/{version}", text))
