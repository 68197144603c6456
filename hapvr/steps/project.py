"""A configuration together with its data root: what every step works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hapvr.config import Config
from hapvr.config_file import load_config
from hapvr.data.filesystem import DataRoot
from hapvr.data.shards import Shard
from hapvr.errors import ConfigError
from hapvr.steps.file_digests import FileDigests

REGISTRY = "mlflow/mlflow.db"
"""MLflow's database, where `tracking.uri` names no other."""
COLLECTION_FILE = "collection.yaml"
"""The configuration of a data root that `hapvr index add` made."""


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
    """what replaced values of the configuration's file, see `load_config`"""

    @staticmethod
    def open(
        config_path: Path, *, folder: Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Project:
        """Read a configuration, or that of the collection whose data root this is. Raises
        ConfigError. folder: what relative paths start from; default is the working directory."""
        of_folder = config_path.is_dir() or not (config_path.suffix or config_path.exists())
        if of_folder:
            config_path = config_path / COLLECTION_FILE
            if not config_path.is_file():
                raise ConfigError(
                    f"{config_path.parent} is not a collection; `hapvr index add FOLDER --data "
                    f"{config_path.parent}` makes one"
                )
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
