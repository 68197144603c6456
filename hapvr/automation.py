"""What runs unattended, and when: the section `automation` of the configuration."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field

from hapvr.settings import Settings

Job = Literal[
    "find_videos",
    "ingest",
    "whiten",
    "extract",
    "retrain",
    "describe",
    "index",
    "duplicates",
    "group",
    "watch",
]

_NUMBERS = ("[1-5]?[0-9]", "1?[0-9]|2[0-3]", "[1-9]|1[0-9]|2[0-8]", "[1-9]|1[0-2]", "[0-7]")
_PARTS = [rf"(\*|({number})(-({number}))?)(/[1-9][0-9]?)?" for number in _NUMBERS]
_CRON = re.compile(" ".join(f"{part}(,{part})*" for part in _PARTS))


def _schedule(cron: str) -> str:
    """A time that Dagster's definitions take, which one that they do not would stop."""
    if _CRON.fullmatch(cron) is None:
        raise ValueError(
            "expected numbers or * for minute, hour, day up to 28, month and day of the week: "
            "0 3 * * 0"
        )

    return cron


def _time_zone(name: str) -> str:
    """A zone of this machine, likewise."""
    if name != "UTC" and name not in available_timezones():
        raise ValueError("not a time zone of this machine, as Europe/Berlin is")
    return name


class AutomationConfig(Settings):
    """What runs by itself. The switches give the state in which schedules and sensors start; the UI
    turns them on and off."""

    enabled: bool = Field(default=False, description="start with all schedules and sensors on")
    watch_every_s: int = Field(
        default=300, ge=5, description="how often sources are looked at for new videos"
    )
    retrain_cron: Annotated[str, AfterValidator(_schedule)] = Field(
        default="0 3 * * 0", description="when to re-train whatever has arrived"
    )
    timezone: Annotated[str, AfterValidator(_time_zone)] = Field(
        default="UTC", description="time zone of `retrain_cron`, e.g. Europe/Berlin"
    )
    retrain_new_videos: int = Field(default=1000, ge=1)
    """re-train as soon as this many training videos have features the model has not seen"""
    duplicates: bool = False
    """with `enabled`, also look for duplicates; a new champion then searches for every video again
    """
    run_resources: dict[
        Job, dict[Literal["num_cpus", "num_gpus", "memory"], Annotated[float, Field(ge=0)]]
    ] = Field(default={})
    """by job, what a run asks of a Ray cluster, e.g. `{extract: {num_cpus: 2, num_gpus: 0.5}}`;
    memory in bytes"""
