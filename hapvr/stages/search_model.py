"""The model that searches are made with: the champion of the project's registry, or one that is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hapvr.errors import DataError
from hapvr.model.family import VideoNetwork
from hapvr.scorer.similarity_model import SimilarityModel, load_similarity_model
from hapvr.search.current import network_digest
from hapvr.stages.project import Project
from hapvr.tracking.store import pinned_uri, registered_bundle


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
    named = uri or f"models:/{project.config.tracking.registered_model}@champion"
    if named.startswith("models:/"):
        model = load_similarity_model(registered_bundle(named, project.tracking_uri))
        pinned = pinned_uri(named, project.tracking_uri)
    else:
        try:
            path = Path(named).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"model: {named!r:.200} cannot be used as a path ({error}); correct it") from error
        model, pinned = load_similarity_model(path), str(path)
    return SearchModel(pinned, network_digest(model.network), model)
