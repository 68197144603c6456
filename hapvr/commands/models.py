"""`hapvr models import | register | list | show | export (or push) | pull | promote | rollback`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.scoring import TrackingOption, model_folder, registry_address
from hapvr.commands.terminal import ConfigOption, SetOption, Verbs, open_project, show
from hapvr.errors import ArgumentError


def _model_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise BadParameter(f"{name!r}: expected letters, digits, _ and -")
    return name


NameOption = Annotated[
    str, Option("--name", callback=_model_name, help="Name of the registered model.")
]
ReasonOption = Annotated[str, Option("--reason", help="Why; kept on the version.")]

INDEX_HINT = "`hapvr index update` lets it answer searches"

ModelArgument = Annotated[
    str, Argument(help="A version's number, an alias, a models:/ name, or a bundle folder.")
]


def _bundle(model: str, name: str, tracking_uri: str) -> Path:
    """The folder of a version, an alias, a models:/ name, or the folder itself."""
    from hapvr.scorer.description import SCORER_FILE

    if re.fullmatch(r"[A-Za-z0-9_-]+", model) and not (Path(model) / SCORER_FILE).exists():
        model = f"models:/{name}/{model}" if model.isdigit() else f"models:/{name}@{model}"
    return model_folder(model, tracking_uri)


def _client_of(tracking_uri: str, *, writing: bool = False) -> Any:
    """MLflow's client of an address, which is checked first, since MLflow takes seconds to
    import."""
    from hapvr.registry.client import mlflow_client

    return mlflow_client(registry_address(tracking_uri), writing=writing)


app = Verbs(
    name="models",
    no_args_is_help=True,
    help="Published checkpoints and the versions in the registry.",
)


@app.command("import")
def import_(
    file: Annotated[
        Path,
        Argument(
            help="A published .pth of HAP-VR, S2VS, DnS, ViSiL or VVS, or a PCA (.pth, .npz)."
        ),
    ],
    out: Annotated[
        Path,
        Option(help="The folder that gets the network; for a PCA, the data root that gets it."),
    ],
    dims: Annotated[
        int | None, Option(help="Values per region, where the tensors do not tell; of a PCA.")
    ] = None,
    symmetric_chamfer: Annotated[
        bool, Option("--symmetric-chamfer", help="It is ViSiL_sym, not ViSiL_v.")
    ] = False,
    pca: Annotated[
        bool, Option("--pca", help="Make the file's PCA (mean, d, V, or VVS's) the whitening.")
    ] = False,
) -> None:
    """Read published tensors without unpickling objects, tell what they are, and store them as
    safetensors and JSON."""
    from hapvr.data.filesystem import DataRoot
    from hapvr.model.checkpoint import save_network, scoring_settings
    from hapvr.model.published import import_released
    from hapvr.steps.whitening import import_whitening

    if pca:
        whitening = import_whitening(DataRoot(out), file, dims=dims)
        return show({"data_root": str(out), "dims": whitening.dims, "sha256": whitening.sha256})

    network, report = import_released(file, dims=dims, symmetric_chamfer=symmetric_chamfer)
    save_network(network, out, metadata={"import": report})
    show({"folder": str(out), "settings": scoring_settings(network), **report})


@app.command("register")
def register_(
    run: Annotated[str, Argument(help="The name of a finished training, see `hapvr train`.")],
    config: ConfigOption,
    set_: SetOption = None,
) -> None:
    """Score, calibrate and register the model of a training; the gate decides whether it becomes
    champion."""
    from hapvr.chain import CHAIN
    from hapvr.steps.training import trained_run

    project = open_project(config, set_)
    if trained_run(project, run).key != run:
        raise ArgumentError(
            f"{run!r:.80}: no training of this name has ended below {project.root.url}/models"
        )

    with progress_bar("benchmark_scores") as progress:
        CHAIN["benchmark_scores"].run(project, run=run, progress=progress)
    with progress_bar("registered_model") as progress:
        registered = CHAIN["registered_model"].run(project, run=run, progress=progress)
    decision = registered.decision
    result = {
        "name": registered.name,
        "version": registered.version,
        "champion": decision.promoted,
        "decision": decision.reason,
    }
    show(result, text=f"models:/{registered.name}/{registered.version} {decision.reason}")


@app.command("list")
def list_(name: NameOption = "hapvr", tracking_uri: TrackingOption = "") -> None:
    """The versions of a registered model, newest first."""
    client = _client_of(tracking_uri)
    from hapvr.registry.versions import list_versions

    versions = list_versions(client, name)
    lines: list[str] = []
    for row in versions:
        aliases = ",".join(row["aliases"]) or "-"
        target = "" if row["target"] is None else f"{100 * row['target']:.2f}"
        lines.append(
            f"{row['version']:>3}  {aliases:<20}  {row['created'][:16]}  {target:>6}  "
            f"{row['weights']:<11} {row['decision']}"
        )
        maker = row["made_by"] or "nobody knows"
        lines.append(f"     made by {maker}; decided {row['decided'] or 'never'}")
        if row["warning"]:
            lines.append(f"     warning: {row['warning']}")

    show({"name": name, "versions": versions}, text=lines)


@app.command("show")
def show_(
    model: ModelArgument = "champion", name: NameOption = "hapvr", tracking_uri: TrackingOption = ""
) -> None:
    """The model card: data, weights, metrics, calibration, limits. As JSON also sampling, backbone
    and serving limits."""
    from hapvr.files import read_text
    from hapvr.scorer.description import CARD_FILE, read_description

    folder = _bundle(model, name, tracking_uri)
    stored = read_description(folder).model_dump(mode="json")
    card = read_text(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else ""
    show(stored | {"card": card}, text=card or json.dumps(stored, indent=1))


@app.command("export")
@app.command("push")
def export_(
    place: Annotated[str, Argument(help="A new folder, or hf://ORGANISATION/NAME of a hub.")],
    model: ModelArgument = "champion",
    license_: Annotated[
        str, Option("--license", help="For the card, as hubs name it, e.g. apache-2.0.")
    ] = "",
    name: NameOption = "hapvr",
    tracking_uri: TrackingOption = "",
) -> None:
    """Write a version with card and digests to a folder, or commit it to the Hugging Face hub or
    the one at HF_ENDPOINT.

    It is safetensors, ONNX and JSON. A new repository is private: read its README.md, which names
    your sources, before you open it.
    """
    bundle = _bundle(model, name, tracking_uri)
    from hapvr.registry.travel import HUB, export_model, push_model

    if place.startswith(HUB):
        sha256, place = push_model(bundle, place, licence=license_)
    else:
        sha256 = export_model(bundle, Path(place), licence=license_)

    show({"place": place, "sha256": sha256}, text=f"{place}: SHA-256 {sha256}")


@app.command("pull")
def pull_(
    place: Annotated[
        str,
        Argument(help="hf://ORGANISATION/NAME, the same with @REVISION, or an exported folder."),
    ],
    sha256: Annotated[
        str, Option(help="What `export` or `push` said; a model of another digest is refused.")
    ] = "",
    name: NameOption = "hapvr",
    tracking_uri: TrackingOption = "",
) -> None:
    """Verify a model and register it as a version, which `promote` makes champion. No pickle is
    fetched or read."""
    client = _client_of(tracking_uri, writing=True)
    from hapvr.registry.runs import Tracker
    from hapvr.registry.travel import pull_model

    tracker = Tracker(client.tracking_uri, name)
    version, digest, source = pull_model(place, tracker, name, sha256=sha256)
    result = {"name": name, "version": version, "sha256": digest, "source": source}
    show(result, text=f"models:/{name}/{version} is {source}, SHA-256 {digest}")


@app.command("promote")
def promote_(
    version: Annotated[int, Argument(help="The version that becomes champion.", min=1)],
    name: NameOption = "hapvr",
    reason: ReasonOption = "promoted by hand",
    tracking_uri: TrackingOption = "",
) -> None:
    """Make a version champion, whatever the gate decided."""
    client = _client_of(tracking_uri, writing=True)
    from hapvr.registry.champions import promote

    before = promote(client, name, version, reason=reason)
    result = {"name": name, "champion": version, "before": before}
    show(result, text=f"champion: models:/{name}@champion is version {version} now; {INDEX_HINT}")


@app.command("rollback")
def rollback_(
    name: NameOption = "hapvr",
    reason: ReasonOption = "rolled back by hand",
    tracking_uri: TrackingOption = "",
) -> None:
    """Make the champion before this one champion again."""
    client = _client_of(tracking_uri, writing=True)
    from hapvr.registry.champions import rollback

    version = rollback(client, name, reason=reason)
    show(
        {"name": name, "champion": version},
        text=f"champion: models:/{name}@champion is version {version} again; {INDEX_HINT}",
    )
