"""The models of searches and of the index: the champion of the project's registry, a named version, or a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hapvr.errors import DamagedError, DataError, HapvrError, MissingPartError, RegistryError
from hapvr.model.description import read_description as read_network
from hapvr.model.description import weights_sha256
from hapvr.registry.client import pinned_uri, registered_bundle, require_store
from hapvr.scorer.description import NETWORK_FOLDER, read_description
from hapvr.search.collection import CURRENT, CurrentIndex, current_index
from hapvr.search.index import digest_of
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork
    from hapvr.scorer.similarity_model import SimilarityModel

REGISTERED = "models:/"
DIGITS = 16


@dataclass(frozen=True, eq=False)
class SearchModel:
    """uri: `models:/NAME/VERSION`, a folder or a file; digest: of the network."""

    uri: str
    digest: str
    model: SimilarityModel

    @property
    def network(self) -> VideoNetwork:
        return self.model.network


def search_model(project: Project, uri: str | None = None) -> SearchModel:
    """uri: a registered model, a bundle, a network folder or a published .pth; None: the project's champion.

    Raises DataError if there is none, saying what makes one.
    """
    from hapvr.scorer.similarity_model import load_similarity_model

    named = uri or _champion(project)
    if named.startswith(REGISTERED):
        named = pinned_uri(named, project.tracking_uri)
    else:
        try:
            named = str(Path(named).resolve())
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"model: {named!r:.200} cannot be used as a path ({error}); correct it") from error
    model = load_similarity_model(_place(project, named))
    return SearchModel(named, network_digest(model.network), model)


def index_bundle(project: Project, current: CurrentIndex, model: str | None) -> Path:
    """The bundle of the model that the index names, or of `model`: a bundle folder or a name in the registry.

    Raises DataError where there is none, and where it has another network than the index was made with.
    """
    named = model or current.model
    folder = _place(project, named)
    read_description(folder)
    if stored_network_digest(folder / NETWORK_FOLDER) != current.digest:
        hint = "`hapvr index build` makes a new one"
        raise DataError(
            f"search: the index below {project.root.url} was made with another network than {named} has"
            + (f" now; {hint}" if model is None else f"; name {current.model}, or {hint}")
        )
    return folder


def registry_warnings(project: Project, current: CurrentIndex) -> tuple[str, ...]:
    """What is to be said where the index's model is not the champion (any more); nothing where no registry answers, or only with
    an error."""
    try:
        require_store(project.tracking_uri)
    except HapvrError:
        return ()
    try:
        champion = pinned_uri(_champion(project), project.tracking_uri)
    except (RegistryError, DamagedError, MissingPartError):
        return ()
    except DataError:
        name = project.config.tracking.registered_model
        return (f"the registry has no champion of {name} any more; {current.model} keeps answering",)
    if champion == current.model:
        return ()
    hint = "`hapvr index update` brings it up to date"
    return (f"the index was made with {current.model}, and the champion is {champion}; {hint}",)


def model_name(project: Project, named: str) -> str:
    """`models:/NAME/VERSION` of a registered model, the name as it is of another."""
    return pinned_uri(named, project.tracking_uri) if "@" in named and named.startswith(REGISTERED) else named


def index_warning(project: Project) -> str:
    """What speaks against believing the model that the index names: that its weights are random, else ""; without an index,
    too."""
    if not project.root.exists(CURRENT):
        return ""
    return read_description(_place(project, current_index(project.root).model)).warning


def _champion(project: Project) -> str:
    return f"{REGISTERED}{project.config.tracking.registered_model}@champion"


def _place(project: Project, model: str) -> Path:
    return registered_bundle(model, project.tracking_uri) if model.startswith(REGISTERED) else Path(model)


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits of everything that decides the scores of a network; equal for networks that score alike."""
    from hapvr.networks.weights import state_sha256

    return digest_of([network.scoring_settings(), state_sha256(network.state_dict())])[:DIGITS]


def stored_network_digest(folder: Path) -> str:
    """`network_digest` of the network in a folder of `save_network`, without torch. Raises DataError for a damaged one."""
    return digest_of([read_network(folder).scoring_settings(), weights_sha256(folder)])[:DIGITS]
