"""Configurations as YAML files: reading with `extends`, environment variables and overrides;
writing without secrets."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hapvr.config import Config
from hapvr.errors import ConfigError, without_logins
from hapvr.model.settings import family_of
from hapvr.settings import Place, explain, places_of
from hapvr.yaml_files import YAML_ERRORS, load_yaml, read_yaml

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MAX_FILES = 32
"""Files that one configuration may extend, each counted as often as it is named."""
LIST_PLACE = re.compile(r"0|[1-9][0-9]{0,5}")
"""A number in a dotted key."""


@dataclass(frozen=True)
class _File:
    """A file that was read."""

    path: Path
    data: Mapping[str, Any]


def load_config(path: Path, *, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file into a `Config`.

    A file may name others to start from, the last one over the first: `extends: ../paper.yaml`, or
    a list of paths relative to its own folder. `${NAME}` in a value stands for an environment
    variable.

    overrides: dotted keys to values, e.g. {"train.steps": 50, "sources.0.path": "clips"}

    Raises: ConfigError naming the file, the key, the value and what is allowed.
    """
    files: list[_File] = []
    data = _read_extended(path, files)
    # A family comes first, because it drops the settings of another one.
    for key, value in sorted(
        (overrides or {}).items(), key=lambda item: item[0] != "train.network.family"
    ):
        _set(data, key, value)

    replaced = [tuple(key.split(".")) for key in overrides or {}]
    return _checked(data, str(path), files, replaced)


def read_overrides(values: Iterable[str]) -> dict[str, Any]:
    """Texts KEY=VALUE of `--set` as a mapping for `load_config`. Values are YAML, so quotes turn
    anything into text. Raises ConfigError."""
    overrides = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {value!r:.120}: expected KEY=VALUE, e.g. train.steps=50")
        try:
            overrides[key] = load_yaml(text)
        except YAML_ERRORS as error:
            problem = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--set {key}: {text!r:.120}: not a YAML value ({problem}); put quotes around text"
            ) from error

    return overrides


def parse_config(data: Mapping[str, Any], *, origin: str) -> Config:
    """Check a nested mapping; `origin` names it in messages. Raises ConfigError."""
    return _checked(data, origin, (), ())


def _checked(
    data: Mapping[str, Any], origin: str, files: Sequence[_File], replaced: Sequence[Place]
) -> Config:
    """A nested mapping as a configuration.

    origin: names it in messages, where not one of `files` does
    files: what was merged into it, the one with the last word first
    replaced: places whose values come from no file

    Raises: ConfigError.
    """
    variables: dict[tuple[str | int, ...], str] = {}
    try:
        config = Config.model_validate(_with_environment(dict(data), (), variables))
    except (KeyError, RecursionError, ValidationError) as error:
        reason, places = _refusal(error, variables)
        invalid = _names_of(places, origin, files, replaced)
        raise ConfigError(f"config: {invalid} is not valid: {reason}") from error

    webhook = config.watch.webhook
    secret = ("watch", "webhook", "secret")
    if webhook is not None and webhook.secret is not None and secret not in variables:
        # trainings and MLflow keep copies of the configuration
        raise ConfigError(
            f"config: {_names_of([secret], origin, files, replaced)}: watch.webhook.secret: "
            "expected ${NAME} of an environment variable"
        )

    config.set_variables(variables)
    return config


def _refusal(
    error: KeyError | RecursionError | ValidationError, variables: Mapping[Place, str]
) -> tuple[str, Sequence[Place]]:
    """Why a configuration is refused, and the places of what is wrong.

    variables: place -> text of each value that comes from environment variables
    """
    if isinstance(error, KeyError):
        reason = f"the environment variable {error.args[0]} is not set, or is empty; set it first"
        return reason, list(variables)[-1:]

    if isinstance(error, ValidationError):
        names = [name for text in variables.values() for name in VARIABLE.findall(text)]
        secrets = [os.environ[name].rstrip("\r\n") for name in names]
        return without_logins(explain(error, secrets=secrets)), places_of(error)

    return "it is nested too deeply; see configs/demo.yaml for the usual form", []


def _names_of(
    places: Sequence[Place], origin: str, files: Sequence[_File], replaced: Sequence[Place]
) -> str:
    """The files that hold what is wrong at these places, each once; arguments as of `_checked`."""
    names: dict[str, None] = {}
    for place in places:
        of_files = _files_with(place, files)
        is_replaced = any(_overlap(place, other) for other in replaced)
        names |= dict.fromkeys([origin] if is_replaced or not of_files else of_files)

    return ", or ".join(names) or origin


def _files_with(place: Place, files: Sequence[_File]) -> list[str]:
    """The files that give the value at a place, or else at the nearest place around it: for a value
    the file with the last word, for a section all that have it; none for the whole configuration.
    """
    depths = [_held(place, file.data) for file in files]
    deepest = max(depths, default=0)
    if deepest == 0:
        return []

    holders = [file for file, depth in zip(files, depths, strict=True) if depth == deepest]
    sections = [file for file in holders if isinstance(_at(place[:deepest], file.data), dict)]
    return [str(file.path) for file in (sections if sections == holders else holders[:1])]


def _at(place: Place, data: Any) -> Any:
    """The value at a place. Raises LookupError or TypeError where there is none."""
    for part in place:
        data = data[part]
    return data


def _held(place: Place, data: Mapping[str, Any]) -> int:
    """How many parts of a place, from the first on, a nested mapping has."""
    for length in range(len(place), 0, -1):
        with suppress(LookupError, TypeError):
            _at(place[:length], data)
            return length
    return 0


def _overlap(place: Place, other: Place) -> bool:
    """Whether two places are the same, or one is around the other."""
    return all(str(part) == str(of_other) for part, of_other in zip(place, other, strict=False))


def dump_config(config: Config) -> str:
    """The configuration as YAML, defaults included; `load_config` of it gives an equal one. Secrets
    stay `${NAME}`."""
    return yaml.safe_dump(config.stored(), sort_keys=False, allow_unicode=True)


def _with_environment(
    value: Any, place: tuple[str | int, ...], variables: dict[tuple[str | int, ...], str]
) -> Any:
    """The value with `${NAME}` replaced wherever it stands in text, without the line end that a
    secret's file may have. variables: receives place -> text of each value that was replaced.
    Raises KeyError for a variable that is not set, or is empty."""
    if isinstance(value, dict):
        return {
            key: _with_environment(inner, (*place, key), variables) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            _with_environment(inner, (*place, number), variables)
            for number, inner in enumerate(value)
        ]
    if not isinstance(value, str) or not VARIABLE.search(value):
        return value
    variables[place] = value
    lines = {name: text.rstrip("\r\n") for name, text in os.environ.items()}
    set_variables = {name: line for name, line in lines.items() if line}
    return VARIABLE.sub(lambda match: set_variables[match[1]], value)


def _read_extended(path: Path, read: list[_File]) -> dict[str, Any]:
    """A file merged over those that its key `extends` names. read: receives each file, the one with
    the last word first."""
    if len(read) >= MAX_FILES:
        raise ConfigError(
            f"config: {read[0].path} extends more than {MAX_FILES} files, or itself; name fewer"
        )

    data = read_yaml(path)
    extends = data.pop("extends", []) if isinstance(data, dict) else None
    bases = [extends] if isinstance(extends, str) else extends
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        wanted = (
            "a mapping of sections, and extends in it a path relative to this file, or "
            "a list of paths"
        )
        raise ConfigError(
            f"config: {path} must hold {wanted}; got {data if extends is None else extends!r:.120}"
        )

    read.append(_File(path, data))
    layers = [_read_extended(path.parent / base, read) for base in reversed(bases)]
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged = _merge(merged, layer)
    return _merge(merged, data)


def _merge(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over `base`: sections are merged key by key; lists, values, and sections of another
    `source` or `family` replace."""
    merged = dict(base)
    for key, value in data.items():
        before = base.get(key)
        merged[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            same_family = "family" not in value or value["family"] == family_of(before)
            if same_family and value.get("source") in (None, before.get("source")):
                merged[key] = _merge(before, value)

    return merged


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    """Replace the value at a dotted key; a number is a place in a list. Missing or empty sections
    on the way are made."""
    *parents, last = key.split(".")
    node: Any = data
    for depth, part in enumerate(parents):
        place = _place_in(node, part, key, depth)
        if isinstance(node, dict) and node.get(place) is None:
            node[place] = {}
        node = node[place]

    place = _place_in(node, last, key, len(parents))
    if last == "family" and value != family_of(node):
        node.clear()
    node[place] = value


def _place_in(node: Any, part: str, key: str, depth: int) -> str | int:
    """Where a part of a dotted key is in a section or list.

    depth: how many parts of the key are before it

    Raises: ConfigError.
    """
    above = ".".join(key.split(".")[:depth])
    if not part:
        problem = "one of its parts is empty"
    elif isinstance(node, dict):
        return part
    elif not isinstance(node, list):
        problem = f"{above:.80} is a value, not a section or a list"
    elif LIST_PLACE.fullmatch(part) and int(part) < len(node):
        return int(part)
    else:
        entries = "1 entry" if len(node) == 1 else f"{len(node)} entries"
        problem = f"{above:.80} is a list of {entries}, counted from 0"

    raise ConfigError(f"config: override {key!r:.120}: there is no such place ({problem})")
