"""The base of all settings, and the settings of search, serving and the gate; other rooms have a
`settings.py` of their own."""

import os
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Rate = Annotated[float, Field(ge=0.0, le=1.0)]


DESCRIBE_VARIABLE = "HAPVR_DESCRIBE_SETTINGS"
"""Set where settings need the text that is written below them, as for their reference. Reading it
from the source takes a quarter of the import, even in each process that decodes a video."""

MAX_NUMBER = 2**53
"""No count, size or seed is larger; above it, readers of JSON lose digits."""


Place = tuple[str | int, ...]
"""Keys and numbers that lead to a value of nested settings."""


class KeyProblem(ValueError):
    """An error in one key of a section that pydantic's own error would not name."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class Address(str):
    """An address that may hold a login or a token: `repr` shows no more than scheme and host."""

    __slots__ = ()

    def __repr__(self) -> str:
        scheme, mark, rest = self.partition("://")
        if not mark:
            return super().__repr__()

        is_server = scheme in ("http", "https")
        place = re.split("[/?#]" if is_server else "[?#]", rest, maxsplit=1)[0]
        shown = place.rpartition("@")[2]
        if rest.count("@") > min(place.count("@"), 1):
            # it cannot be told where a login ends
            shown = "..."
        elif len(place) < len(rest):
            shown += "/..." if is_server else "?..."

        return repr(f"{scheme}://{shown}")


def _takes_truth(kind: Any) -> bool:
    """Whether a type, or one inside it, takes true and false, or anything."""
    return kind in (bool, Any, object) or any(map(_takes_truth, get_args(kind)))


def _require_a_sensible_number(key: str, value: Any, kind: Any) -> None:
    """Raise ValueError for true and false where a number is wanted, which would count as 1 and 0,
    and for a number without meaning."""
    if isinstance(value, bool) and not (_takes_truth(kind) or True in get_args(kind)):
        raise KeyProblem(key, f"{key}: expected a number or text, got {str(value).lower()}")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        problem = f"{key}: {str(value)[:40]} is beyond {MAX_NUMBER}; give a smaller number"
        raise KeyProblem(key, problem)


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error rather than a silent
    default."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        # Most processes check the values of few of these classes, and some of none.
        defer_build=True,
        use_attribute_docstrings=DESCRIBE_VARIABLE in os.environ,
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        """As `extra="forbid"`, and with the names that are allowed."""
        if not isinstance(data, dict):
            return data
        if unknown := [key for key in data if key not in cls.model_fields]:
            allowed = ", ".join(sorted(cls.model_fields))
            problem = f"unknown key {unknown[0]!r:.100}; allowed here: {allowed}"
            raise KeyProblem(unknown[0], problem)

        for key, value in data.items():
            _require_a_sensible_number(key, value, cls.model_fields[key].annotation)
        # A strict reader of JSON, once it has come through here, takes no list for a tuple.
        return {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }


Policy = Literal["official", "strict", "frozen"]
"""How missing videos of a benchmark count, see `hapvr.benchmark.protocol`."""


class GateConfig(Settings):
    """When a challenger becomes champion: better on the target, worse on no required metric (paired
    bootstrap over queries)."""

    enabled: bool = Field(
        default=True, description="false: no version replaces a champion until somebody promotes it"
    )
    required_metrics: tuple[str, ...] = ()
    """metrics that must not get worse, in addition to `parts`; if empty, the target metrics"""
    confidence: float = Field(default=0.95, ge=0.5, lt=1)
    """share of resamples from which on a difference counts as real"""
    max_drop: Rate = Field(
        default=0.02, description="a required metric that falls by more is worse, sure or not"
    )


class ServingConfig(Settings):
    """Limits of one request to a registered model; stored with it. HAPVR_<NAME> in the environment
    replaces a value. A video, pair or request above a limit gives rows with an error."""

    max_pairs: int = Field(default=10_000, ge=1, description="pairs of one request")
    max_frame_pairs: int = Field(default=1_000_000_000, ge=1)
    """pairs of a query's frame and a reference's frame, over all pairs of one request"""
    max_bytes: int = Field(default=2_000_000_000, ge=1, description="size of a video file")
    max_frames: int = Field(default=3600, ge=1, description="sampled frames of a video")
    video_timeout_s: float = Field(default=120.0, gt=0)
    """a video is given up after so long without progress in reading or decoding, and so is a
    download that takes longer"""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """for a whole request; null: as long as it takes, or as the model server allows"""


IndexKind = Literal["lance", "memory"]


class IndexSettings(Settings):
    """How descriptors are indexed (inverted lists of RaBitQ codes) and how much of the index a
    query looks at."""

    kind: IndexKind = "lance"
    """of indexes that are built from now on; `memory` compares a query with every frame, holds all
    frames in memory, and writes all of them at each change. It needs a data root on a local disk;
    the other keys are for `lance`"""
    min_indexed_rows: int = Field(default=50_000, ge=64)
    """a table with fewer rows is compared whole, which is exact"""
    code_bits: int = Field(default=1, ge=1, le=9)
    """bits of a code per dimension, in indexes that are built from now on; with fewer than 3, leave
    refine_factor at 4 or more"""
    probed_lists: int = Field(default=16, ge=1, description="inverted lists that a query looks at")
    refine_factor: int = Field(default=4, ge=0)
    """this many times the requested rows are found by their codes, and then their stored vectors
    are compared; 0: the codes decide, and no stored vectors are read, which is best in an object
    store, with code_bits 3 or more"""


class SearchSettings(Settings):
    """Search over the collection."""

    index: IndexSettings = IndexSettings()
    candidates: int = Field(
        default=100, ge=1, le=10_000, description="videos that the network compares with a query"
    )
    first_stage: Literal["frames", "videos"] = "frames"
    """what chooses the candidates: votes of frames, or one vector of each video, which the families
    `tca` and `vvs` have. The latter looks at fewer vectors, and cannot find a short part of a long
    video"""
    min_duplicate_probability: float = Field(default=0.9, ge=0.5, le=1)
    """less probable pairs of duplicates are stored, but neither shown nor grouped"""


PREFERENCES = ("sound", "resolution", "fps", "bits", "smallest")
"""What `duplicates.prefer` may name, besides folders."""


class DuplicatesSettings(Settings):
    """Which copy of a group is kept. Whatever is preferred, a copy of which only a part can be read
    is not kept beside a whole one, nor a shorter one beside a longer one."""

    prefer: tuple[str, ...] = ()
    """in this order: folders of ids with a slash at the end, `SOURCE/` or `SOURCE/FOLDER/`, and
    `sound`, `resolution`, `fps`, `bits` (of the pictures) or `smallest` (file). Those of the first
    four that are not named follow in their order"""
    protect: tuple[str, ...] = ()
    """folders of ids, `SOURCE/` or `SOURCE/FOLDER/`, whose files are always kept, and never moved
    or replaced by a link"""

    @model_validator(mode="after")
    def _check_names(self) -> "DuplicatesSettings":
        for entry in self.prefer:
            if not _is_folder(entry) and entry not in PREFERENCES:
                allowed = ", ".join(PREFERENCES)
                raise ValueError(
                    f"prefer: {entry!r:.100} is unknown; expected a folder with a slash at the "
                    f"end, such as archive/, or one of {allowed}"
                )

        for entry in self.protect:
            if not _is_folder(entry):
                raise ValueError(
                    f"protect: {entry!r:.100} is not a folder; expected one with a slash at the "
                    "end, such as archive/"
                )

        return self


def _is_folder(entry: str) -> bool:
    return entry.endswith("/") and bool(entry.strip("/"))


def explain(error: ValidationError, *, secrets: Collection[str] = ()) -> str:
    """What is wrong with which setting, in one line; of many errors the first 20. secrets: texts
    that must not be shown."""
    lines = []
    hidden = {form for secret in secrets for form in (secret, repr(secret)[1:-1])}
    for item in error.errors()[:20]:
        name = f"{'.'.join(str(part) for part in item['loc']):.200}"
        got = "" if isinstance(item["input"], dict) else f" (got {item['input']!r:.120})"
        problem = item["msg"].removeprefix("Value error, ")
        if any(form in text for form in hidden for text in (problem, str(item["input"]))):
            problem = "the value from the environment is not valid"
            got = ""

        lines.append(f"{name}: {problem}{got}".removeprefix(": "))

    return "; ".join(lines)


def places_of(error: ValidationError) -> list[Place]:
    """The places of what is wrong; of a missing value, where it should be."""
    places = []
    for item in error.errors()[:20]:
        place: Place = item["loc"]
        problem = item.get("ctx", {}).get("error")
        if isinstance(problem, KeyProblem):
            place = (*place, problem.key)
        elif item["type"] == "missing":
            place = place[:-1]

        places.append(place)

    return places


def first_line(error: BaseException) -> str:
    """The first line of an error's text, up to 200 characters; the error's type if it has no text,
    and `explain` for a ValidationError."""
    if isinstance(error, ValidationError):
        return explain(error)[:200]
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
