"""The bundle of the untrained baseline: the frozen network, a network that compares its vectors as
they are, how sure answers are, and the card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from hapvr.files import write_text
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, NetworkDescription
from hapvr.networks.encoder import FrameEncoder
from hapvr.networks.packaged import PackagedBackbone
from hapvr.networks.region_graph import OPSET
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress
from hapvr.scorer.bundle_writer import BundleParts, complete_bundle, write_bundle
from hapvr.scorer.description import SCORER_FILE
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER
from hapvr.scorer.plain_networks import UNTRAINED
from hapvr.scorer.shipped import shipped_calibration
from hapvr.steps.baseline_card import baseline_card
from hapvr.steps.model_places import MODELS
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import fit_on_edits


def write_baseline(
    project: Project,
    folder: Path,
    encoder: FrameEncoder,
    videos: Mapping[str, str],
    progress: Progress,
) -> Path:
    """Write the bundle below `folder`; returns its folder. videos: those to fit on, by id."""
    whitening = load_whitening(project.root)
    network = folder / "network"
    _write_untrained_network(network, whitening.dims)
    onnx = _export(project, folder, encoder, whitening)
    parts = BundleParts(
        network_folder=network,
        encoder=encoder,
        whitening=whitening,
        sampling=project.config.sampling,
        serving=project.config.serving,
        onnx=onnx,
        onnx_folder=folder / "exported" if onnx.get("files") else None,
    )
    bundle = write_bundle(folder / "bundle", parts)
    evidence: EvidenceModel | str
    shipped = shipped_calibration(project.config.backbone)
    if shipped is None:
        evidence, calibration = fit_on_edits(project, bundle, videos, progress=progress)
    else:
        evidence = shipped.evidence
        calibration = shipped.calibration

    card = baseline_card(encoder, videos, evidence, calibration)
    complete_bundle(bundle, evidence=evidence, calibration=calibration, card=card)
    place = f"{MODELS}/{folder.name}"
    project.root.note_made(f"{place}/network/{DESCRIPTION_FILE}")
    project.root.note_made(f"{place}/bundle/{SCORER_FILE}")
    return bundle


def _write_untrained_network(folder: Path, dims: int) -> None:
    """The network that compares vectors as they are, as `save_network` writes it by torch."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({}, folder / WEIGHTS_FILE)
    description = NetworkDescription(dims=dims, settings=UNTRAINED, metadata={})
    write_text(folder / DESCRIPTION_FILE, description.model_dump_json(indent=2) + "\n")


def _export(
    project: Project, folder: Path, encoder: FrameEncoder, whitening: Whitening
) -> dict[str, Any]:
    """What scorer.json says of the ONNX files, which are written to `exported`: those of a packaged
    backbone, none for a network that stays in its package, and those that torch exports."""
    record = {"opset": OPSET, "settings": UNTRAINED.model_dump(mode="json")}
    if encoder.state() is None:
        return record | {"files": []}
    if isinstance(encoder, PackagedBackbone):
        exported = folder / "exported" / ONNX_FOLDER
        exported.mkdir(parents=True, exist_ok=True)
        graph = encoder.graph(whitening)
        (exported / "backbone.onnx").write_bytes(graph.SerializeToString())
        return record | {"files": ["backbone.onnx"]}

    from hapvr.steps.export import export_onnx  # with torch

    return export_onnx(project, folder)
