"""Asset checks: the findings on a shard, with severity and a hint. They run with the asset that they are about."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from hapvr.steps.quality import Finding

VIDEOS = {
    "unavailable_videos": "Share of videos that the sites do not have any more.",
    "failed_videos": "Share of videos that could not be fetched or are not videos.",
    "duplicate_videos": "Share of files whose bytes equal another video's.",
}
FRAMES = {
    "undecodable_videos": "Share of files that could not be decoded.",
    "frame_rate": "Frames per second of video, against the sampling rate.",
    "stored_bytes": "The data file has the digest in its index.",
}
FEATURES = {
    "feature_values": "No NaN, infinity or zero vector.",
    "feature_norms": "Region vectors have unit length.",
    "stored_bytes": "The data file has the digest in its index.",
}
STORED = {"stored_bytes": "The data file has the digest in its index."}


def specs(asset: str, checks: dict[str, str]) -> list[dg.AssetCheckSpec]:
    """Specifications of an asset's checks by name and description."""
    return [dg.AssetCheckSpec(name, asset=asset, description=text) for name, text in checks.items()]


def results(findings: Iterable["Finding"], *, asset: str | None = None) -> list[dg.AssetCheckResult]:
    """Findings as Dagster shows them. asset: of a function that makes several assets, the one that they are about."""
    severities = {"warn": dg.AssetCheckSeverity.WARN, "error": dg.AssetCheckSeverity.ERROR}
    return [
        dg.AssetCheckResult(
            check_name=finding.name,
            asset_key=asset,
            passed=finding.passed,
            severity=severities[finding.severity],
            description=None if finding.passed else finding.hint,
            metadata={
                **{
                    name: dg.MetadataValue.json(value) if isinstance(value, list) else value
                    for name, value in finding.values.items()
                },
                **({} if finding.passed else {"hint": finding.hint}),
            },
        )
        for finding in findings
    ]


def warning(name: str, *, passed: bool, hint: str, **values: object) -> dg.AssetCheckResult:
    """A check that warns where it has not passed, with the hint and what it is about."""
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if passed else hint,
        metadata={}
        if passed
        else {"hint": hint, **{key: dg.MetadataValue.json({key: value}) for key, value in values.items()}},
    )
