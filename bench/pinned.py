"""The results of the demo as a short JSON document, to be compared before and after a change that
should not change any result.

python bench/pinned.py configs/demo.yaml > before.json
python bench/pinned.py configs/demo.yaml --compare before.json

The document has digests of the stored values (not of the files, whose layout may change), the
metrics of both models, and the answers of 50 searches by the champion.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from hapvr.steps.project import Project

STAGES = ("frames", "features", "training_views", "pseudo_labels")
NUM_SEARCHES = 50


def digest_of_table(path: Path) -> str:
    """SHA-256 over the values of every column of a Parquet file, by column name."""
    digest = hashlib.sha256()
    table = pq.read_table(path)
    for name in sorted(table.column_names):
        column = table.column(name).combine_chunks()
        kind = column.type
        digest.update(f"{name}:{kind}:".encode())
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_primitive(kind):
            digest.update(
                np.ascontiguousarray(np.frombuffer(column.buffers()[1], np.uint8)).tobytes()
            )
        else:
            digest.update(repr(column.to_pylist()).encode())

    return digest.hexdigest()


def answers(config: Path, video_ids: list[str]) -> dict[str, Any]:
    """For each video of the collection as a query: its matches with similarity, probability and
    times."""
    options = [word for video_id in video_ids for word in ("--id", video_id)]
    command = ["hapvr", "search", "--config", str(config), "--json", "--top", "10", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"searches": json.loads(done.stdout)}


def pinned(config: Path) -> dict[str, Any]:
    """The document, from the data root of a configuration."""
    project = Project.open(config)
    root = project.root.local
    assert root is not None
    shards = {
        str(path.relative_to(root).parent): digest_of_table(path)
        for stage in STAGES
        for path in sorted((root / stage).glob("*/data.parquet"))
    }
    whitening = {
        name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        for name, value in load_file(root / "whitening" / "whitening.safetensors").items()
    }
    scores = {
        path.parent.name: json.loads(path.read_text())["results"]
        for path in sorted((root / "models").glob("*/benchmarks/*/scores.json"))
    }
    metrics = {
        name: {row: result["metrics"] for row, result in rows.items()}
        for name, rows in scores.items()
    }
    ids = sorted(
        pq.read_table(root / "videos" / "demo-test-00000" / "index.parquet")
        .column("video_id")
        .to_pylist()
    )
    searches = answers(config, ids[:NUM_SEARCHES])
    return {"shards": shards, "whitening": whitening, "metrics": metrics, **searches}


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Where two documents differ, with both values; numbers that differ say by how much."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{place}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [
            line
            for number, (one, other) in pairs
            for line in differences(one, other, f"{place}/{number}")
        ]
    if before == after:
        return []
    by = (
        f" ({after - before:+.2e})"
        if isinstance(before, float) and isinstance(after, float)
        else ""
    )
    return [f"{place}: {str(before)[:80]} -> {str(after)[:80]}{by}"]


def main() -> int:
    """0: printed, or equal; 1: something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--compare", type=Path, help="a document of before; prints what differs")
    arguments = parser.parse_args()
    document = json.loads(json.dumps(pinned(arguments.config)))
    if arguments.compare is None:
        print(json.dumps(document, indent=1))  # noqa: T201
        return 0

    lines = differences(json.loads(arguments.compare.read_text()), document)
    print("\n".join(lines) or "equal")  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
