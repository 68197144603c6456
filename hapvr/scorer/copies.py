"""The scorer of copies that works right after installation: the packaged network, compared as it
is, with the calibration that ships. It needs neither a collection nor a registry."""

from __future__ import annotations

from hapvr.errors import MissingPartError
from hapvr.networks.copies import open_packaged_copy_network
from hapvr.networks.settings import BackboneConfig
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.plain_networks import PlainNetworks
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.shipped import FITTED_CROP_PX, shipped_calibration
from hapvr.scorer.videos import PictureSettings
from hapvr.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

NAME = "sscd_distilled"
"""Its name in answers."""


def open_copy_scorer() -> VideoScorer:
    """Raises MissingPartError where the package of the network is not installed."""
    config = BackboneConfig.model_validate(
        {"architecture": NAME, "weights": {"source": "packaged"}, "crop_px": FITTED_CROP_PX}
    )
    try:
        encoder = open_packaged_copy_network(config)
    except MissingPartError as error:
        raise MissingPartError(f"{error}; or name a model with --model") from None

    shipped = shipped_calibration(config)
    return VideoScorer(
        PlainNetworks(lambda: encoder.embedder(None, "cpu")),
        pictures=PictureSettings(
            sampling=SamplingConfig(), crop_px=config.crop_px, picture=config.picture
        ),
        calibration=None if shipped is None else shipped.calibration,
        limits=limits_from_environment(ServingConfig()),
        warning="",
        untrained=True,
    )
