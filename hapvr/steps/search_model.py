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
from hapvr.model.checkpoint import scoring_settings
from hapvr.registry.client import located_bundle, pinned_uri
from hapvr.scorer.bundle import open_networks
from hapvr.scorer.description import SCORER_FILE, Description, read_description
from hapvr.scorer.onnx_networks import ONNXRecord
from hapvr.scorer.open_bundle import OpenBundle
from hapvr.search.current import CURRENT, CurrentIndex, current_index, serving_index
from hapvr.steps.project import REGISTRY, Project

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork

REGISTERED = "models:/"


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchModel:
    """A model that describes frames."""

    uri: str
    """`models:/NAME/VERSION`, a folder or a file; of what lies below the data root the place there,
    so that it names the same where the root is copied or moved"""
    digest: str
    """of the network"""
    dims: int
    """D of the features that it takes"""
    embedding_dims: int
    """d of the embeddings that it makes"""
    needs_extras: bool
    """see `hapvr.model.family`"""
    embeds_videos: bool
    """see `hapvr.model.family`"""
    embed: Callable[[NDArray[Any]], NDArray[np.float32]]
    """features [T, R, D] -> [T, r, d]"""
    description: Description | None
    """of a bundle; models from outside do not say with which features they go"""


def search_model(project: Project, uri: str | None = None) -> SearchModel:
    """A model that describes frames, from the registry or from a place.

    uri: a registered model, a bundle, a network folder or a published .pth; None: the project's
        champion

    Raises: DataError if there is none, saying how to get one.
    """
    named, place = _located(project, uri or _default_model(project))
    if (place / SCORER_FILE).is_file():
        bundle = OpenBundle.open(place)
        if isinstance(bundle.description.onnx, ONNXRecord):
            return _packaged_model(named, bundle, bundle.description.onnx)
        return _torch_model(project, named, place, bundle.description)

    return _torch_model(project, named, place, None)


def _default_model(project: Project) -> str:
    """The champion. Without a registry, or without MLflow, the model that the index names; if the
    index is lost, the baseline that `hapvr index add` made."""
    from hapvr.steps.baseline import stored_baseline

    if project.config.tracking.uri or project.root.exists(REGISTRY):
        return _champion(project)
    serving = serving_index(project.root)
    if serving is not None:
        return serving.model
    baseline = stored_baseline(project) if project.root.local is not None else None
    return _champion(project) if baseline is None else str(baseline)


def default_model_name(project: Project) -> str:
    """The model that `search_model` opens by default, as answers name it."""
    model = _default_model(project)
    if model.startswith(REGISTERED):
        return pinned_uri(model, project.tracking_uri)
    name, _ = _located(project, model)
    return name


def _packaged_model(uri: str, bundle: OpenBundle, onnx: ONNXRecord) -> SearchModel:
    """The model of a bundle with ONNX files, without torch."""
    networks = open_networks(bundle.folder, bundle.description, onnx, sees_frames=False)
    dims = bundle.network.dims
    return SearchModel(
        uri=uri,
        digest=bundle.network_digest,
        dims=dims,
        embedding_dims=networks.settings.binary_bits or dims,
        needs_extras=False,
        embeds_videos=False,
        embed=networks.embed,
        description=bundle.description,
    )


def _torch_model(
    project: Project, uri: str, place: Path, description: Description | None
) -> SearchModel:
    """A model in torch."""
    import torch

    from hapvr.networks.torch_runtime import choose_device
    from hapvr.scorer.bundle import load_similarity_model

    device = choose_device(project.config.device)
    network = load_similarity_model(place)[0].to(device)

    def embed(regions: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            embedded = network.embed(torch.from_numpy(regions).to(device))
            return np.asarray(embedded.float().cpu().numpy())

    return SearchModel(
        uri=uri,
        digest=network_digest(network),
        dims=network.dims,
        embedding_dims=network.embedding_dims,
        needs_extras=network.needs_extras,
        embeds_videos=network.embeds_videos,
        embed=embed,
        description=description,
    )


def index_bundle(
    project: Project, current: CurrentIndex, model: str | None
) -> tuple[str, OpenBundle]:
    """The model that the index names, or `model`, by its name in answers, and its bundle.

    model: a bundle folder or a name in the registry

    Raises: DataError if there is none, and if the index was made with another network.
    """
    named = model or current.model
    uri, folder = _located(project, named) if model else _recorded(project, current)
    bundle = OpenBundle.open(folder)
    if bundle.network_digest == current.digest:
        return uri, bundle

    hint = "`hapvr index build` makes a new one"
    now = f" now; {hint}" if model is None else f"; name {current.model}, or {hint}"
    raise DataError(
        f"search: the index below {project.root.url} was made with another network than "
        f"{named} has{now}"
    )


def registry_warnings(project: Project, current: CurrentIndex) -> tuple[str, ...]:
    """Warnings if the index's model is not the champion, or no longer; none if no registry answers,
    or only with an error."""
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
    """Why the model that the index names is not to be trusted: its weights are random; else "",
    also without an index."""
    if not project.root.exists(CURRENT):
        return ""
    _, folder = _recorded(project, current_index(project.root))
    return read_description(folder).warning


def _champion(project: Project) -> str:
    return f"{REGISTERED}{project.config.tracking.registered_model}@champion"


def _recorded(project: Project, current: CurrentIndex) -> tuple[str, Path]:
    """As `_located`, of the model that an index names. Raises DamagedError where its folder is
    gone."""
    if current.model.startswith(REGISTERED):
        return _located(project, current.model)
    place = Path(project.root.local or os.sep) / current.model
    if not place.exists():
        raise DamagedError(
            f"model: {place}, which the index was made with, is missing; restore it from a copy, "
            "or name where it is with --model. `hapvr index add` makes an untrained model again"
        )

    return _located(project, str(place))


def _located(project: Project, model: str) -> tuple[str, Path]:
    """A model as `SearchModel.uri` names it, and where its files are. model: such a name, or a path
    as people write it."""
    if model.startswith(REGISTERED):
        return located_bundle(model, project.tracking_uri)
    below = Path(project.root.local or os.sep)
    own = below / model
    place = own if own.exists() else Path(os.path.abspath(model))
    is_own = project.root.local is not None and place.is_relative_to(below)
    return (place.relative_to(below).as_posix() if is_own else str(place)), place


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits of everything that determines the scores of a network; equal for networks that
    score alike."""
    from hapvr.networks.weights import state_sha256

    return digest_of([scoring_settings(network), state_sha256(network.state_dict())])[:16]
