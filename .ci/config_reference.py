"""The reference of the configuration, written from its JSON schema: python .ci/config_reference.py
> docs/configuration.md"""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any

os.environ["HAPVR_DESCRIBE_SETTINGS"] = "1"  # read where the models are defined
from hapvr.config import Config

HEADER = """# Configuration

Written from `hapvr/config.py` by `make docs`; a test compares the two.

A configuration is a YAML file; `configs/` has some. With `extends: other.yaml` it starts from
another file, and with a list of paths from several, each of which overrides those before it, such
as the files in `configs/backbones/`. `${NAME}` in a value stands for an environment variable. A key
that is not given has its default, which is the paper's where the paper gives one. An unknown key is
an error. Units are in the names: `_s` seconds, `_px` pixels, `_bytes` bytes; a rate or probability
is in [0, 1].
"""
LIMITS = {
    "minimum": "≥ ",
    "exclusiveMinimum": "> ",
    "maximum": "≤ ",
    "exclusiveMaximum": "< ",
    "pattern": "matching ",
}
Schema = Mapping[str, Any]


def markdown() -> str:
    """A table per section, in the order of the models."""
    schema = Config.model_json_schema()
    parts = [HEADER]
    for path, section in _sections(schema, schema["$defs"], ""):
        text = textwrap.fill(
            _text(section["description"]), 119, break_long_words=False, break_on_hyphens=False
        )
        rows = [
            _row(name, field, section.get("required", ()))
            for name, field in section["properties"].items()
        ]
        head = (
            f"## {f'`{path}`' if path else 'Top level'}\n\n{text}\n\n| key | values | default | |"
        )
        parts += [head, "| --- | --- | --- | --- |", *rows, ""]

    return "\n".join(parts)


def _sections(section: Schema, defs: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, section
    for name, field in section["properties"].items():
        above, condition, kind = path.partition("` with ")
        inner = f"{above}.{name}{condition}{kind}" if path else name
        found = [
            defs[one["$ref"].removeprefix("#/$defs/")] for one in _walk(field) if "$ref" in one
        ]
        for one in found:
            first, tag = next(iter(one["properties"].items()))
            kinds = " or ".join(map(str, tag.get("enum", [tag.get("const")])))
            yield from _sections(
                one, defs, f"{inner}` with `{first}: {kinds}" if len(found) > 1 else inner
            )


def _walk(field: Schema) -> Iterator[Schema]:
    """A schema, and those of the list, the tuple or the kinds that it consists of."""
    yield field
    parts = (field.get(name, ()) for name in ("anyOf", "oneOf", "prefixItems"))
    for inner in (*itertools.chain(*parts), *([field["items"]] if "items" in field else ())):
        yield from _walk(inner)


def _row(name: str, field: Schema, required: Collection[str]) -> str:
    default = "required" if name in required else f"`{_value(field.get('default', {}))}`"
    if isinstance(field.get("default"), dict) and any("$ref" in one for one in _walk(field)):
        default = "see below"
    limits = [
        sign + (f"`{one[limit]}`" if limit == "pattern" else _value(one[limit]))
        for one in _walk(field)
        for limit, sign in LIMITS.items()
        if limit in one
    ]
    values = ", ".join(dict.fromkeys([_type(field), *limits]))
    return f"| `{name}` | {values} | {default} | {_text(field.get('description', ''))} |"


def _type(field: Schema) -> str:
    choices = field.get("enum", [field["const"]] if "const" in field else [])
    if choices:
        return " or ".join(f"`{choice}`" for choice in choices)
    if "$ref" in field or "oneOf" in field:
        return "section"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one) for one in field["anyOf"]))
    if field["type"] == "array":
        many = field.get("prefixItems")
        return f"{len(many)} of {_type(many[0])}" if many else f"list of {_type(field['items'])}"

    return str(field.get("format", field["type"]))


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value)}]"
    return (
        f"{value:g}"
        if isinstance(value, float)
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
