"""Whether there is anything to train on, known without the libraries that train."""

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import shard_keys
from hapvr.errors import DataError


def require_ingested(root: DataRoot) -> None:
    """Raises DataError where no video was read and no features were imported."""
    if shard_keys(root) or root.list_folders(FEATURES_STAGE):
        return
    raise DataError(
        f"training: nothing is ingested below {root.url}; run `hapvr download`, `hapvr sample` and "
        "`hapvr extract` with the same configuration, then train"
    )
