"""What determines the results of searches that a step has stored."""

from collections.abc import Mapping

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.files import digest_of
from hapvr.provenance import Provenance
from hapvr.search.current import CurrentIndex
from hapvr.search.engine import FORMAT as SCORES_FORMAT
from hapvr.steps.project import Project


def search_fingerprint(
    stage: str,
    project: Project,
    current: CurrentIndex,
    key: str,
    indexed: str,
    contents: Mapping[str, str],
    **asked: object,
) -> str:
    """A fingerprint that changes where searches in a shard, or for its videos, may give other
    results: with the model, features, descriptors, files, settings and the method of search.

    indexed: digest of what the index holds of the shard
    contents: see `CollectionMetadata`; those with which results are stored
    asked: what the step adds
    """
    search = project.config.search
    settings = search.model_dump(
        mode="json", exclude={"index", "min_duplicate_probability", "first_stage"}
    )
    if search.first_stage != "frames":
        settings["first_stage"] = search.first_stage
    recorded = {
        "network": current.digest,
        "model": current.model,
        "scores": SCORES_FORMAT,
        "files": digest_of(contents),
    }
    inputs = {"features": project.shard(FEATURES_STAGE, key).digest(), "descriptors": indexed}
    return Provenance(stage, {**recorded, **asked, **settings}, inputs).fingerprint
