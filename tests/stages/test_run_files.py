"""Files of trainings and evaluations that are well formed and hold wrong values."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hapvr.errors import DamagedError
from hapvr.stages.run_files import check_run
from hapvr.stages.training import TrainingRun, current_key, training_result
from hapvr.storage.filesystem import DataRoot
from hapvr.tracking.training import PENDING_NAME, FileEntry, MetricsEntry, Outbox
from hapvr.train.labelled_pairs import LabelledPair, LabelledPairs
from hapvr.train.report import TrainingResult, read_history
from tests.hostile_json import believed

WEIGHTS = {"architecture": "resnet18.tv_in1k", "source": "random", "sha256": "ab"}
RECORD = {
    "mlflow_run_id": "08226f8a",
    "shards": ["own-train-00000"],
    "data_digests": {"whitening": "29c4"},
    "weights": {"backbone": WEIGHTS},
    "environment": {"hapvr": "0.1.0"},
    "labelled_pairs": {},
}
TASK = {"metric": "mAP", "num_queries": 4, "num_relevant": 16}
RESULT = {"policy": "strict", "metrics": {"DSVR": 1.0}, "intervals": {"DSVR": [0.9, 1.0]}, "tasks": {"DSVR": TASK}}
NAMES = ("untrained baseline", "trained model")
SCORES = {"digest": "c3", "target_means": dict.fromkeys(NAMES, 0.9), "results": dict.fromkeys(NAMES, RESULT)}
LABELLED = asdict(LabelledPairs((LabelledPair(("a", "b"), ((0.0, 1.5), (2.0, 3.0))),), ("d",), 2))


MAY_LACK = {
    "run.json": ("shards=[]", "shards.0=absent", "environment={}", "environment.hapvr=absent", "labelled_pairs=absent"),
    "benchmarks/own/scores.json": [f"results.{one}.intervals{end}" for one in NAMES for end in (".DSVR=absent", "={}")],
    "labelled_pairs.json": ("pairs=[]", "pairs.0=absent", "pairs.0.copies=absent", "pairs.0.copies=None", "distractors=[]",
                            "distractors=absent", "distractors.0=absent", "num_unusable=absent"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "document"), zip(MAY_LACK, (RECORD, SCORES, LABELLED), strict=True))
def test_a_wrong_value_is_named(tmp_path: Path, name: str, document: Any) -> None:
    """Whatever is read of it again; a text may be any text, and lists and optional values may be empty."""
    root = DataRoot(tmp_path)
    path = tmp_path / "models" / "ended" / name
    path.parent.mkdir(parents=True)
    key = "ended" if path.parent.name == "ended" else f"ended/{path.parent.name}"
    taken = believed(path, lambda: check_run(root, "models" if key == "ended" else "benchmark_scores", key), document)
    assert {one for one in taken if "='" not in one} == set(MAY_LACK[name])


def test_a_wrong_result_is_named(tmp_path: Path) -> None:
    """Each value has its type."""
    result = asdict(TrainingResult(8, 0, 3, 0.9, 7, 1.5, 0.1, 9.0, "ab"))
    run = TrainingRun("ended", tmp_path, "")
    taken = believed(tmp_path / "result.json", lambda: training_result(run), result)
    taken = {one for one in taken if not one.startswith("weights_sha256='")}
    assert {one.split("=")[1] for one in taken} == {"-1", "100000000", "1e+308", "nan", "inf"}


@pytest.mark.parametrize(
    "key", ["", "..", "../models/ended", "/etc", "gone", "x" * 300, "a\0b", "ended\n", 5, None, ["ended"]]
)
def test_the_current_model_is_a_run_below_models(tmp_path: Path, key: object) -> None:
    """A key that leads elsewhere is refused, by `verify` too."""
    root = DataRoot(tmp_path)
    (tmp_path / "models" / "ended").mkdir(parents=True)
    root.write_json("models/current.json", {"key": "ended"})
    assert current_key(root) == "ended"
    check_run(root, "models", "")
    root.write_json("models/current.json", {"key": key})
    for read in (current_key, lambda root: check_run(root, "models", "")):
        with pytest.raises(DamagedError, match=r"current\.json .*train again, or write the key of a run"):
            read(root)


def test_lines_of_a_history_that_are_none_are_passed_over(tmp_path: Path) -> None:
    lines = (
        '{"step": 0, "loss/total": 1.5}',
        '{"loss/total": 1}',
        "5",
        '{"step": "x"}',
        '{"step": 1, "loss/total": []}',
        '{"step": 1}',
    )
    (tmp_path / "history.jsonl").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match="it is skipped"):
        assert read_history(tmp_path) == [{"step": 0, "loss/total": 1.5}, {"step": 1}]


def test_what_waits_for_mlflow_is_a_file_of_the_run(tmp_path: Path) -> None:
    """A line that names another file is passed over: it would be uploaded."""
    outbox = Outbox(tmp_path)
    outbox.add(FileEntry("batches/similarity-1.png"))
    outbox.add(MetricsEntry(1, 2, {"loss": 0.5}))
    with (tmp_path / PENDING_NAME).open("a") as file:
        for name in ("../secret", "/etc/passwd", "batches/../../secret", "batches/", "run.json"):
            file.write(json.dumps({"file": name, "folder": "batches"}) + "\n")
    with pytest.warns(UserWarning, match="it is skipped"):
        assert outbox.entries() == [FileEntry("batches/similarity-1.png"), MetricsEntry(1, 2, {"loss": 0.5})]
