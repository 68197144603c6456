"""Features: whitening, and whitened region features of whole videos."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset


def _show_whitening(made: Made) -> dg.MaterializeResult:
    from hapvr.networks.whitening import WEIGHTS_NAME

    result = made.result
    return dg.MaterializeResult(
        metadata={
            "dims": result.whitening.dims,
            "regions": int(result.provenance.environment["num_regions"]),
            "backbone_weights": str(result.provenance.settings.get("backbone", {}).get("source", "imported")),
            "path": dg.MetadataValue.path(f"{made.project.root.url}/{WEIGHTS_NAME}"),
            "digest": result.whitening.sha256,
            "was_finished": not result.done,
            "fitted_on": dg.MetadataValue.json(dict(result.provenance.inputs)),
        },
        data_version=dg.DataVersion(result.whitening.sha256),
    )


whitening = step_asset("whitening", _show_whitening, group="features", kinds={"pytorch"})


def _show_features(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_features

    return metadata.shard(made.result, check_features(made.project, made.key))


features = step_asset(
    "features",
    _show_features,
    group="features",
    kinds={"pytorch", "parquet"},
    checks=checks.specs("features", checks.FEATURES),
)
