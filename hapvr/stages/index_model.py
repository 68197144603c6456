"""The model of the index: where its bundle is, whether it fits, and what the registry says of it meanwhile."""

from __future__ import annotations

from pathlib import Path

from hapvr.errors import DataError, HapvrError, RegistryError
from hapvr.scorer.bundle import NETWORK_FOLDER, read_description
from hapvr.search.current import CurrentIndex, serving_index, stored_network_digest
from hapvr.stages.project import Project
from hapvr.tracking.store import pinned_uri, registered_bundle, require_store

REGISTERED = "models:/"


def index_bundle(project: Project, current: CurrentIndex, model: str | None) -> Path:
    """The bundle of the model that the index names, or of `model`: a bundle folder or a name in the registry.

    Raises DataError where there is none, and where it has another network than the index was made with.
    """
    named = model or current.model
    folder = _bundle(project, named)
    read_description(folder)
    if stored_network_digest(folder / NETWORK_FOLDER) != current.digest:
        remedy = "`hapvr index build` makes it anew"
        raise DataError(
            f"search: the index below {project.root.url} was made with another network than {named} has"
            + (f" now; {remedy}" if model is None else f"; name {current.model}, or {remedy}")
        )
    return folder


def check_model(project: Project, model: str) -> None:
    """Raise as `index_bundle` does, also where there is no index yet: then any bundle will do."""
    current = serving_index(project.root)
    if current is None:
        read_description(_bundle(project, model))
    else:
        index_bundle(project, current, model)


def registry_warnings(project: Project, current: CurrentIndex) -> tuple[str, ...]:
    """What is to be said where the index's model is not the champion (any more); nothing where no registry answers, or only with
    an error."""
    name, remedy = project.config.tracking.registered_model, "`hapvr index update` brings it up to date"
    try:
        require_store(project.tracking_uri)
    except HapvrError:
        return ()
    try:
        pinned_uri(current.model, project.tracking_uri)
    except RegistryError:
        return ()
    except DataError:
        return (
            f"{current.model}, which the index was made with, is not in the registry any more; what is loaded answers until the "
            f"next start; {remedy}",
        )
    try:
        champion = pinned_uri(f"{REGISTERED}{name}@champion", project.tracking_uri)
    except RegistryError:
        return ()
    except DataError:
        return (f"the registry has no champion of {name} any more; {current.model} goes on answering",)
    if champion == current.model:
        return ()
    return (f"the index was made with {current.model}, and the champion is {champion}; {remedy}",)


def _bundle(project: Project, model: str) -> Path:
    return registered_bundle(model, project.tracking_uri) if model.startswith(REGISTERED) else Path(model)
