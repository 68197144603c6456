"""YAML that users write, read within limits: few aliases, each key once, and no more values and
levels than can be read within seconds."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from hapvr.errors import ConfigError
from hapvr.files import file_problem, read_bytes

MAX_BYTES = 1 << 18
"""The largest file."""
MAX_VALUES = 30_000
"""The most keys and values: reading takes 0.1 ms for each."""
MAX_DEPTH = 32
"""The most levels in each other."""
TOO_DEEP = f"it is nested in more than {MAX_DEPTH} levels"
YAML_ERRORS = (
    yaml.YAMLError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
"""What `load_yaml` raises: PyYAML lets through what the constructors of values raise."""


class _Loader(yaml.SafeLoader):
    """YAML with few aliases, as a page of them can stand for 2^100 values, with each key once, and
    with as many values and levels as can be read within seconds."""

    aliases = 0
    values = 0
    depth = 0

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        # Before a value is composed, brackets are read on, in time of the square of their depth.
        if self.flow_level >= MAX_DEPTH:
            raise yaml.YAMLError(TOO_DEEP)
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.aliases > 16:
            raise yaml.YAMLError("more than 16 aliases (*); write the values out")
        self.values += 1
        if self.values > MAX_VALUES:
            raise yaml.YAMLError(f"it has more than {MAX_VALUES:,} keys and values")
        if self.depth >= MAX_DEPTH:
            raise yaml.YAMLError(TOO_DEEP)

        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and len(node.value) > 18:
            raise yaml.YAMLError(f"{node.value:.40} is not a number of at most 18 digits")
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
            raise yaml.YAMLError(f"{node.value!r:.80} has a NUL, which nothing can be named by")

        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        for key, count in Counter(str(key.value) for key, _ in node.value).items():
            if count > 1:
                raise yaml.YAMLError(f"{key} is given {count} times; keep one")
        return node


def load_yaml(text: str) -> Any:
    """The value of a YAML text. Raises YAML_ERRORS."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises ConfigError."""
    try:
        return load_yaml(read_bytes(path, max_bytes=MAX_BYTES).decode("utf-8-sig"))
    except (OSError, *YAML_ERRORS) as error:
        problem = " ".join(file_problem(error).split())[:300]
        raise ConfigError(
            f"config: {str(path)!r:.200} is not readable YAML ({problem}); configs/ has examples"
        ) from error
