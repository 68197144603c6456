"""Where the folders of trainings are, and which training ended last; imports nothing that
trains."""

import re
import time

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError

MODELS = "models"
CURRENT_NAME = f"{MODELS}/current.json"
RUN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


def key_of_now(row: str) -> str:
    """The key of a training for which none was given, from its row of `configs/ablations.yaml`,
    TABLE/ROW or "" for none, and the time."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", row) or "run"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def current_key(root: DataRoot) -> str:
    """The key of the run whose training ended last. Raises DamagedError if CURRENT_NAME names a run
    that does not exist."""
    key = str(root.read_json(CURRENT_NAME).get("key"))
    models = root.local_path(MODELS)
    if not RUN_KEY.fullmatch(key) or not (models / key).is_dir():
        raise DamagedError(
            f"{root.local_path(CURRENT_NAME)} names the run {key!r:.120}, which is not "
            f"there; train again, or write the key of a run below {models} into it"
        )

    return key
