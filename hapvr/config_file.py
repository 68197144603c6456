"""Configurations as YAML files: reading with `extends` and overrides, writing, and messages that name key and limits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hapvr.config import Config
from hapvr.errors import ConfigError
from hapvr.files import require_regular
from hapvr.model.settings import DEFAULT_FAMILY, family_of

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


FAMILY_KEY = "train.network.family"
MAX_FILES = 32
"""Files that one configuration may extend, each counted as often as it is named."""
MAX_VALUES = 100_000
"""Values of one configuration: YAML aliases can expand one page to 2^100."""


def load_config(path: Path, *, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file into a `Config`.

    A file may name others to start from, the last one over the first: `extends: ../paper.yaml`, or a list of paths relative to
    its own folder. `${NAME}` in a value stands for an environment variable.

    overrides: dotted keys to values, e.g. {"train.steps": 50, "sources.0.path": "clips"}.
    Raises ConfigError naming the file, the key, the value and what is allowed.
    """
    try:
        data = _read_extended(path, (), [])
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"config: {path} is nested too deeply; see configs/demo.yaml for the usual form") from None
    except (OSError, ValueError) as error:  # a path that no file can have
        raise ConfigError(f"config: {str(path)!r} cannot be read ({error}); correct --config or `extends`") from error
    # A family comes first, because it drops the settings of another one.
    for key, value in sorted((overrides or {}).items(), key=lambda item: not item[0].endswith(FAMILY_KEY)):
        _set(data, key, value, path)
    return parse_config(data, origin=str(path))


def read_value(text: str, *, what: str) -> Any:
    """One value as YAML: a number, text, true or false, null, a list or a mapping. `what` names it in messages.

    Raises ConfigError for anything else, dates and YAML's tags among it; quotes make text of them.
    """
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise ConfigError(f"{what} {text!r:.120}: not a YAML value ({problem}); put quotes around text") from error
    if _num_values(value, {}) > MAX_VALUES:
        raise ConfigError(f"{what} {text!r:.120}: this stands for more than {MAX_VALUES} values; write fewer")
    if not _is_plain(value):
        raise ConfigError(f"{what} {text!r:.120}: this is a {type(value).__name__}; put quotes around text")
    return value


def _num_values(value: Any, known: dict[int, int]) -> int:
    """How many values this holds, those that aliases repeat counted each time; too many for one that holds itself.

    known: counts by identity, to be filled.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_VALUES + 1
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(one, known) for one in inner)
    return known[id(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(_is_plain(inner) for inner in value)
    return value is None or isinstance(value, str | int | float | bool)


def parse_config(data: Mapping[str, Any], *, origin: str) -> Config:
    """Check a nested mapping; `origin` names it in messages. Raises ConfigError."""
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from error
    config.set_variables(_variables_in(data))
    return config


class _FromEnvironment(str):
    """A value that came from environment variables. text: as it stands in the file, e.g. "${TOKEN}"."""

    text: str


def _variables_in(data: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], str]:
    """Path -> the text in the file, of all values that came from environment variables."""
    if isinstance(data, _FromEnvironment):
        return {path: data.text}
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    return {place: text for key, value in items for place, text in _variables_in(value, (*path, key)).items()}


def dump_config(config: Config) -> str:
    """The configuration as YAML, defaults included; `load_config` of it gives an equal one. Secrets stay `${NAME}`."""
    return yaml.safe_dump(config.stored(), sort_keys=False, allow_unicode=True)


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys that stand in one YAML file, `extends` among them, unchecked. Raises ConfigError naming the file."""
    try:
        require_regular(path)
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config: {path} does not exist; see configs/ for the ones that ship") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"config: {path} is not readable YAML: {error}") from error
    if _num_values(data, {}) > MAX_VALUES:
        raise ConfigError(f"config: {path} stands for more than {MAX_VALUES} values, by its aliases; write fewer")
    if not isinstance(data, dict):
        raise ConfigError(
            f"config: {path} must hold a mapping of sections, got {type(data).__name__}; see configs/demo.yaml"
        )
    return {key: _with_environment(value, path) for key, value in data.items()}


def _with_environment(value: Any, path: Path) -> Any:
    """The value with `${NAME}` replaced wherever it stands in a string. Raises ConfigError for a variable that is not set."""
    if isinstance(value, dict):
        return {key: _with_environment(inner, path) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_environment(inner, path) for inner in value]
    if not isinstance(value, str):
        return value
    unset = [name for name in VARIABLE.findall(value) if name not in os.environ]
    if unset:
        raise ConfigError(f"config: {path}: {value!r}: the environment variable {unset[0]} is not set; set it first")
    if not VARIABLE.search(value):
        return value
    found = _FromEnvironment(VARIABLE.sub(lambda match: os.environ[match[1]], value))
    found.text = value
    return found


def _read_extended(path: Path, extended_by: tuple[Path, ...], read: list[Path]) -> dict[str, Any]:
    """A file merged over those that its key `extends` names. read: all files so far."""
    read.append(path)
    if len(read) > MAX_FILES:
        raise ConfigError(f"config: {read[0]} extends more than {MAX_FILES} files; name fewer")
    if path.resolve() in [file.resolve() for file in extended_by]:
        chain = " -> ".join(map(str, (*extended_by, path)))
        raise ConfigError(f"config: files extend each other in a circle: {chain}")
    data = read_mapping(path)
    extends = data.pop("extends", [])
    bases = [extends] if isinstance(extends, str) else extends
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(
            f"config: {path}: extends: wanted a path relative to this file, or a list of paths, got {extends!r}"
        )
    merged: dict[str, Any] = {}
    for base in bases:
        merged = _merge(merged, _read_extended(path.parent / base, (*extended_by, path), read))
    return _merge(merged, data)


def _merge(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over `base`: sections are merged key by key; lists, values, and sections of another `source` or `family` replace."""
    merged = dict(base)
    for key, value in data.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict) and _is_alike(before, value):
            merged[key] = _merge(before, value)
        else:
            merged[key] = value
    return merged


def _is_alike(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether a section goes on with the one before it: it names no source and no family, or the same ones."""
    same_family = "family" not in value or value["family"] == family_of(before)
    return same_family and value.get("source") in (None, before.get("source"))


def _set(data: Any, key: str, value: Any, path: Path) -> None:
    *parents, last = key.split(".")
    node = data
    for part in parents:
        if isinstance(node, list) and _is_index(part, node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise ConfigError(f"config: {path}: override {key!r}: there is no {part!r}")
    if isinstance(node, list) and _is_index(last, node):
        node[int(last)] = value
    elif isinstance(node, dict):
        if last == "family" and value != family_of(node):
            node.clear()
        node[last] = value
    else:
        raise ConfigError(f"config: {path}: override {key!r}: there is no {last!r}")


def _is_index(text: str, items: list[Any]) -> bool:
    """Whether the text is the position of an item; other scripts' digits and huge numbers are not."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(len(items))) and int(text) < len(items)


def _explain(error: ValidationError, origin: str) -> str:
    lines = [f"config: {origin} is not valid:"]
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        # The default family is not named in a file, so it is not in the key either.
        key = ".".join(part for part in location if part != DEFAULT_FAMILY) or "(whole file)"
        if item["type"] == "extra_forbidden":
            allowed = _allowed_keys(location[:-1])
            lines.append(f"  {key}: unknown key; allowed here: {', '.join(allowed)}")
        else:
            lines.append(f"  {key}: {item['msg']} (got {item.get('input')!r:.120})")
    return "\n".join(lines)


def _allowed_keys(location: list[str]) -> list[str]:
    """Field names of the section at a validation location, whose parts are field names, indices and union tags."""
    models: list[type[BaseModel]] = [Config]
    for part in location:
        if part.isdigit():
            continue
        tagged = [model for model in models if part in _tags(model)]
        if tagged:
            models = tagged
            continue
        models = [
            inner
            for model in models
            if part in model.model_fields
            for inner in _models_in(model.model_fields[part].annotation)
        ]
    return sorted({name for model in models for name in model.model_fields})


def _tags(model: type[BaseModel]) -> set[str]:
    return {
        str(value)
        for name in ("kind", "source", "family")
        if name in model.model_fields
        for value in get_args(model.model_fields[name].annotation)
    }


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
