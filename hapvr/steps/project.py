"""A configuration together with its data root: what every step works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hapvr.config import Config
from hapvr.config_file import dump_config, load_config
from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard
from hapvr.errors import ConfigError
from hapvr.files import write_text
from hapvr.steps.file_digests import FileDigests

REGISTRY = "mlflow/mlflow.db"
"""MLflow's database, where `tracking.uri` names no other."""
COLLECTION_FILE = "collection.yaml"
"""The configuration of a data root that `hapvr index add` made."""
RECORDED_FILE = "configuration.yaml"
"""The configuration that made a data root, for calls that name the root instead; see
`record_configuration`."""


@dataclass(frozen=True)
class Project:
    """What a run works on."""

    config: Config
    root: DataRoot
    """where the data is stored"""
    folder: Path
    """what relative paths of the configuration start from"""
    digests: FileDigests = field(default_factory=FileDigests, compare=False, repr=False)
    """of the files that this run has read"""
    overrides: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """values that replace those of the configuration's file, see `load_config`"""

    @staticmethod
    def open(
        config_path: Path, *, folder: Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Project:
        """Read a configuration, or that of the data root that is named. Raises ConfigError. folder:
        what relative paths start from; default is the working directory."""
        of_folder = config_path.is_dir() or not (config_path.suffix or config_path.exists())
        if of_folder:
            config_path = _configuration_of(config_path)
        config = load_config(config_path, overrides=overrides)
        base = (folder or Path.cwd()).resolve()
        root = DataRoot(config.data_root if "://" in config.data_root else base / config.data_root)
        if of_folder and root.local != config_path.parent.resolve():
            raise ConfigError(
                f"{config_path} has data_root {root.url}; correct it if the folder was "
                "copied or moved"
            )

        return Project(config, root, base, overrides=overrides or {})

    def path(self, path: Path) -> Path:
        """A path of the configuration, made absolute."""
        return path if path.is_absolute() else self.folder / path

    def shard(self, stage: str, key: str) -> Shard:
        return Shard(self.root, stage, key)

    @property
    def tracking_uri(self) -> str:
        """The MLflow server of the configuration, or a SQLite file in the data root."""
        return self.config.tracking.uri or f"sqlite:///{self.root.local_path(REGISTRY)}"


def _configuration_of(root: Path) -> Path:
    """The configuration in a data root. Raises ConfigError where there is none."""
    for name in (COLLECTION_FILE, RECORDED_FILE):
        if (root / name).is_file():
            return root / name

    raise ConfigError(
        f"{root} is not a collection; `hapvr index add FOLDER --data {root}` makes one"
    )


def record_configuration(project: Project) -> None:
    """Write the configuration, with all its values, into the data root, so that every verb takes
    the root instead. Not done for a root in an object store, nor for a collection, which has its
    own."""
    if project.root.local is None or (project.root.local / COLLECTION_FILE).exists():
        return
    config = project.config.model_copy(update={"data_root": str(project.root.local)})
    comment = "# What made this data root; each run of the demo writes this file again.\n"
    project.root.local.mkdir(parents=True, exist_ok=True)
    write_text(project.root.local / RECORDED_FILE, comment + dump_config(config))
