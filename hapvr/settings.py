"""What all settings have in common. The settings of a room of the library are in its own `settings.py`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        """As `extra="forbid"`, and with the names that are allowed."""
        if not isinstance(data, dict):
            return data
        if unknown := [key for key in data if key not in cls.model_fields]:
            raise ValueError(f"unknown key {unknown[0]!r:.100}; allowed here: {', '.join(sorted(cls.model_fields))}")
        # A strict reader of JSON, once it has come through here, takes no list for a tuple.
        return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


MAX_ERRORS = 20


def explain(error: ValidationError) -> str:
    """What is wrong with which setting, in one line; of many errors the first."""
    lines, errors = [], error.errors()
    for item in errors[:MAX_ERRORS]:
        name = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        got = "" if isinstance(item["input"], dict) else f" (got {item['input']!r:.120})"
        lines.append(f"{name}: {message}{got}" if name else message)
    if len(errors) > MAX_ERRORS:
        lines.append(f"and {len(errors) - MAX_ERRORS} more")
    return "; ".join(lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, up to 200 characters: its type where it has none, of a ValidationError `explain`."""
    if isinstance(error, ValidationError):
        return explain(error)[:200]
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
