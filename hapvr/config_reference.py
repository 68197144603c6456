"""The reference of the configuration, written from the models themselves: python -m hapvr.config_reference > docs/configuration.md"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hapvr.config import Config

HEADER = """# Configuration

Written from `hapvr/config.py` by `make docs`; a test compares the two.

A configuration is a YAML file; `configs/` has some. `extends: other.yaml` starts from another file, a list of paths from
several, the last one over the first: `configs/backbones/` has files for this. `${NAME}` in a value stands for an environment
variable. What is not given has the default, which is the paper's where the paper gives one. An unknown key is an error. Units
are in the names: `_s` seconds, `_px` pixels, `_bytes` bytes; a rate or probability is in [0, 1].
"""
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def markdown() -> str:
    """A table per section, in the order of the models."""
    parts = [HEADER]
    for path, model in _sections(Config, ""):
        title = f"`{path}`" if path else "Top level"
        parts.append(f"## {title}\n\n{_text(model.__doc__ or '')}\n")
        parts.append("| key | values | default | |\n| --- | --- | --- | --- |")
        parts += [_row(name, field) for name, field in model.model_fields.items()]
        parts.append("")
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        section, condition, kind = path.partition("` with ")
        inner = f"{section}.{name}{condition}{kind}" if path else name
        models = list(_models(field.annotation))
        for found in models:
            first = next(iter(found.model_fields), "")
            tag = get_args(found.model_fields[first].annotation) if len(models) > 1 else ()
            yield from _sections(found, f"{inner}` with `{first}: {tag[0]}" if tag else inner)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _row(name: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        default = "required"
    elif isinstance(field.default, BaseModel):
        default = "see below"
    else:
        default = f"`{_value(field.get_default(call_default_factory=True))}`"
    limits = [*_limits(field.metadata), *_limits(get_args(field.annotation))]
    values = ", ".join([_type(field.annotation), *dict.fromkeys(limits)])
    return f"| `{name}` | {values} | {default} | {_text(field.description or '')} |"


def _limits(metadata: Any) -> Iterator[str]:
    for constraint in metadata:
        for attribute, sign in LIMITS.items():
            value = getattr(constraint, attribute, None)
            if value is not None:
                yield f"{sign} {_value(value)}"
        pattern = getattr(constraint, "pattern", None)
        if pattern:
            yield f"matching `{pattern}`"
        yield from _limits(get_args(constraint))


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type(get_args(annotation)[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        inner = get_args(annotation)
        if all(isinstance(one, type) and issubclass(one, BaseModel) for one in inner):
            return "section"
        return " or ".join(dict.fromkeys(_type(one) for one in inner))
    if origin is tuple:
        items = [one for one in get_args(annotation) if one is not Ellipsis]
        return ("list of " if Ellipsis in get_args(annotation) else f"{len(items)} of ") + _type(items[0])
    if origin is dict:
        return "mapping"
    if annotation is type(None):
        return "`null`"
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            return "section"
        return {Path: "path", str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}[annotation]
    raise TypeError(f"config reference: no words for {annotation!r}; add them here")


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_value(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value.value if isinstance(value, Enum) else value)


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
