"""Asset checks: the findings on a shard, with severity and a hint. They run with their asset."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

STORED = {"stored_bytes": "The data file has the digest in its index."}
VIDEOS = {
    "unavailable_videos": "Share of videos that the sites do not have any more.",
    "failed_videos": "Share of videos that could not be fetched or are not videos.",
    "duplicate_videos": "Share of files whose bytes equal another video's.",
}
FRAMES = {
    "undecodable_videos": "Share of files that could not be decoded.",
    "frame_rate": "Frames per second of video, against the sampling rate.",
    **STORED,
}
FEATURES = {
    "feature_values": "No NaN, infinity or zero vector.",
    "feature_norms": "Region vectors have unit length.",
    **STORED,
}


def specs(asset: str, checks: Mapping[str, str]) -> list[dg.AssetCheckSpec]:
    """The specifications of an asset's checks, from names and descriptions."""
    return [dg.AssetCheckSpec(name, asset=asset, description=text) for name, text in checks.items()]


def result(
    name: str,
    passed: bool,
    hint: str,
    *,
    severity: str = "warn",
    asset: str | None = None,
    **values: Any,
) -> dg.AssetCheckResult:
    """The result of a check, with its details, and with the hint if it has not passed.

    severity: warn or error
    asset: which asset the check is of, in a function that makes several
    """
    shown = {
        key: dg.MetadataValue.json(value) if isinstance(value, list | dict) else value
        for key, value in values.items()
    }
    return dg.AssetCheckResult(
        check_name=name,
        asset_key=asset,
        passed=passed,
        severity=dg.AssetCheckSeverity[severity.upper()],
        description=None if passed else hint,
        metadata=shown if passed else shown | {"hint": hint},
    )


def empty_record(
    reason: str, names: Iterable[str], *, asset: str | None = None
) -> dg.MaterializeResult:
    """The record of a shard that needs no data; its checks pass."""
    return dg.MaterializeResult(
        asset_key=asset,
        metadata={"dagster/row_count": 0, "reason": reason},
        data_version=dg.DataVersion("nothing"),
        check_results=[
            dg.AssetCheckResult(check_name=name, asset_key=asset, passed=True, description=reason)
            for name in names
        ],
    )
