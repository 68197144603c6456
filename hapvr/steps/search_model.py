"""The models of searches and of the index: the champion of the project's registry, a named version,
or a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import DamagedError, DataError, MissingPartError, RegistryError
from hapvr.files import digest_of
from hapvr.model.checkpoint import (
    read_description as read_network,
    scoring_settings,
    weights_sha256,
)
from hapvr.registry.client import pinned_uri, registered_bundle
from hapvr.scorer.bundle import (
    NETWORK_FOLDER,
    SCORER_FILE,
    Description,
    open_networks,
    read_description,
)
from hapvr.scorer.onnx_networks import ONNXRecord
from hapvr.search.collection import CURRENT, CurrentIndex, current_index, serving_index
from hapvr.steps.project import REGISTRY, Project

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork

REGISTERED = "models:/"


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchModel:
    """uri: `models:/NAME/VERSION`, a folder or a file; digest: of the network. dims: D of the
    features that it takes; embedding_dims: d of what it makes of them. needs_extras: see
    `hapvr.model.family`. description: of a bundle; models that came from outside do not say which
    features they go with."""

    uri: str
    digest: str
    dims: int
    embedding_dims: int
    needs_extras: bool
    embed: Callable[[NDArray[Any]], NDArray[np.float32]]
    """Features [T, R, D] -> [T, r, d]."""
    description: Description | None


def search_model(project: Project, uri: str | None = None) -> SearchModel:
    """uri: a registered model, a bundle, a network folder or a published .pth; None: the project's
    champion. Raises DataError if there is none, saying what makes one."""
    registry = uri or project.config.tracking.uri or project.root.exists(REGISTRY)
    serving = None if registry else serving_index(project.root)  # where MLflow is not installed
    named = uri or (serving.model if serving is not None else _champion(project))
    named = (
        pinned_uri(named, project.tracking_uri)
        if named.startswith(REGISTERED)
        else os.path.abspath(named)
    )
    place = _place(project, named)
    description = read_description(place) if (place / SCORER_FILE).is_file() else None
    if description is not None and isinstance(description.onnx, ONNXRecord):
        networks = open_networks(place, description, description.onnx)
        digest = stored_network_digest(place / NETWORK_FOLDER)
        dims = read_network(place / NETWORK_FOLDER).dims
        needs_extras = False
        embedding_dims = networks.settings.binary_bits or dims
        embed = networks.embed
    else:
        import torch

        from hapvr.networks.torch_runtime import choose_device
        from hapvr.scorer.bundle import load_similarity_model

        device = choose_device(project.config.device)
        network = load_similarity_model(place)[0].to(device)
        digest, dims, needs_extras = network_digest(network), network.dims, network.needs_extras
        embedding_dims = network.embedding_dims

        def embed(regions: NDArray[Any]) -> NDArray[np.float32]:
            with torch.inference_mode():
                return np.asarray(
                    network.embed(torch.from_numpy(regions).to(device)).float().cpu().numpy()
                )

    return SearchModel(
        uri=named,
        digest=digest,
        dims=dims,
        embedding_dims=embedding_dims,
        needs_extras=needs_extras,
        embed=embed,
        description=description,
    )


def index_bundle(project: Project, current: CurrentIndex, model: str | None) -> Path:
    """The bundle of the model that the index names, or of `model`: a bundle folder or a name in the
    registry. Raises DataError where there is none, and where it has another network than the index
    was made with."""
    named = model or current.model
    folder = _place(project, named)
    read_description(folder)
    if stored_network_digest(folder / NETWORK_FOLDER) != current.digest:
        hint = "`hapvr index build` makes a new one"
        raise DataError(
            f"search: the index below {project.root.url} was made with another network than "
            f"{named} has"
            + (f" now; {hint}" if model is None else f"; name {current.model}, or {hint}")
        )
    return folder


def registry_warnings(project: Project, current: CurrentIndex) -> tuple[str, ...]:
    """What to say where the index's model is not the champion (any more); nothing where no registry
    answers, or only with an error."""
    try:
        champion = pinned_uri(_champion(project), project.tracking_uri)
    except (RegistryError, DamagedError, MissingPartError):
        return ()
    except DataError:
        name = project.config.tracking.registered_model
        return (
            f"the registry has no champion of {name} any more; {current.model} keeps answering",
        )
    if champion == current.model:
        return ()
    hint = "`hapvr index update` brings it up to date"
    return (f"the index was made with {current.model}, and the champion is {champion}; {hint}",)


def index_warning(project: Project) -> str:
    """What speaks against believing the model that the index names: that its weights are random,
    else ""; without an index, too."""
    if not project.root.exists(CURRENT):
        return ""
    return read_description(_place(project, current_index(project.root).model)).warning


def _champion(project: Project) -> str:
    return f"{REGISTERED}{project.config.tracking.registered_model}@champion"


def _place(project: Project, model: str) -> Path:
    own = Path(
        project.root.local or os.sep, *Path(model).parts[-3:]
    )  # models/KEY/bundle of a root that was moved
    kept = own if own.is_dir() and not os.path.isdir(model) else Path(model)
    return registered_bundle(model, project.tracking_uri) if model.startswith(REGISTERED) else kept


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits of everything that decides the scores of a network; equal for networks that
    score alike."""
    from hapvr.networks.weights import state_sha256

    return digest_of([scoring_settings(network), state_sha256(network.state_dict())])[:16]


def stored_network_digest(folder: Path) -> str:
    """`network_digest` of the network in a folder of `save_network`, without torch. Raises
    DataError for a damaged one."""
    return digest_of([scoring_settings(read_network(folder)), weights_sha256(folder)])[:16]
