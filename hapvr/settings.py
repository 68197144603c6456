"""What all settings have in common. The settings of a room of the library are in its own `settings.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """Base of all settings: immutable, and an unknown key is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def explain(error: ValidationError) -> str:
    """What is wrong with which setting, in one line."""
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message} (got {item['input']!r:.120})" if name else message)
    return "; ".join(lines)
