"""Tables of ablation of papers, whose rows override a configuration; see configs/ablations.yaml."""

from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from hapvr.errors import ConfigError
from hapvr.settings import Settings, explain
from hapvr.yaml_files import read_yaml


class AblationTable(Settings):
    """A table of ablation of a paper."""

    source: str
    config: str
    common: dict[str, Any] = Field(default_factory=dict)
    """dotted keys to values of all rows, as for `load_config`"""
    rows: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """the same of each row"""
    needs: dict[str, str] = Field(default_factory=dict)
    """rows that settings alone do not give, with what they need"""


def read_ablations(path: Path) -> dict[str, AblationTable]:
    """All tables of such a file, by name. Raises ConfigError."""
    try:
        return TypeAdapter(dict[str, AblationTable]).validate_python(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(
            f"config: {path} holds no tables of ablation: {explain(error)}"
        ) from error


def read_row(path: Path, name: str) -> dict[str, Any]:
    """The settings of a row, TABLE/ROW, as overrides for `load_config`. path: the file of tables.
    Raises ConfigError for a table or row that is not there, and for one that needs more than
    settings."""
    tables = read_ablations(path)
    table_name, _, row_name = name.partition("/")
    table = tables.get(table_name)
    if table is None:
        raise ConfigError(
            f"--row {name!r:.120}: {path} has no table {table_name!r:.60}; expected TABLE/ROW of "
            f"{', '.join(tables)}"
        )
    if needed := table.needs.get(row_name):
        raise ConfigError(f"--row {name}: it needs {needed}")
    if row_name not in table.rows:
        rows = ", ".join(f"{table_name}/{row}" for row in table.rows)
        raise ConfigError(
            f"--row {name!r:.120}: {table.source} has no row of this name; expected one of "
            f"{rows or 'none, see what it needs in the file'}"
        )

    return {**table.common, **table.rows[row_name]}
