"""What all settings have in common. The settings of a room of the library are in its own `settings.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


MAX_ERRORS = 20


def explain(error: ValidationError) -> str:
    """What is wrong with which setting, in one line; of many errors the first."""
    lines, errors = [], error.errors()
    for item in errors[:MAX_ERRORS]:
        name = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message} (got {item['input']!r:.120})" if name else message)
    if len(errors) > MAX_ERRORS:
        lines.append(f"and {len(errors) - MAX_ERRORS} more")
    return "; ".join(lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, up to 200 characters: its type where it has none, of a ValidationError `explain`."""
    if isinstance(error, ValidationError):
        return explain(error)[:200]
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
