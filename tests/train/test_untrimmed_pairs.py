"""VVS learns from labelled pairs of untrimmed videos which frames to suppress."""

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch.nn import functional as F

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.config import OptimizerConfig
from hapvr.model.checkpoint import build_network, load_network
from hapvr.model.settings import NUM_REGIONS, VvsSettings
from hapvr.model.vvs import VvsNetwork
from hapvr.train.pair_labels import CopiedSegment, PairLabels
from hapvr.train.run_folder import read_history
from hapvr.train.settings import PairsConfig
from tests.conftest import MakeOnce
from tests.train.demo_pairs import make_pairs_project, open_pairs_project
from tests.train.runs import run, with_train
from tests.train.untrimmed_pairs import (
    NUM_FRAMES,
    UntrimmedVideo,
    mean_metric,
    moved,
    saliency_auc,
    trimmed_features,
    untrimmed,
)
from tests.train.written_features import empty_project, write_features

STEPS = 100
NUM_DISTRACTORS = 40
VVS = VvsSettings.model_validate(
    {
        "distractor_discrimination": False,
        "topic": {"temperature": 1.0},
        "saliency": {"attention": "video", "label_rule": "plain", "width": 16},
    }
)
ADAM = OptimizerConfig(
    kind="adam", learning_rate=1e-3, weight_decay=0, warmup_steps=0, floor_rate=1
)


@dataclass(frozen=True)
class UntrimmedPairs:
    """Videos of labelled pairs, their copied segments, distractors, and others to validate on.

    Stills of a query are of other videos than those of its copies, and those of distractors and of
    the validation half are of other videos again."""

    paired: dict[str, UntrimmedVideo]
    copies: tuple[CopiedSegment, ...]
    distractors: dict[str, UntrimmedVideo]
    validated: dict[str, UntrimmedVideo]
    definition: BenchmarkDefinition


def make_untrimmed(folder: Path, *, config: Path) -> UntrimmedPairs:
    """From the project of the demo's pairs, with one vector a frame."""
    features = {
        name: F.normalize(regions[:, :NUM_REGIONS].float().mean(1, keepdim=True), dim=-1).half()
        for name, regions in trimmed_features(open_pairs_project(folder, config=config)).items()
    }
    others = [clip for name, clip in features.items() if name.startswith("demo-train/")]
    third = len(others) // 3
    definition = load_definition(str(folder / "corpus" / "demo-validation"))
    queries = set(definition.queries)
    with (folder / "labelled_pairs.csv").open(encoding="utf-8", newline="") as file:
        copies = [CopiedSegment.model_validate(row) for row in csv.DictReader(file)]

    queries |= {copy.query for copy in copies}
    videos: dict[str, dict[str, UntrimmedVideo]] = {"demo-test": {}, "demo-validation": {}}
    stills = {"demo-test": others[:third], "demo-validation": others[2 * third :]}
    for name, clip in features.items():
        part = name.partition("/")[0]
        if part in videos:
            of_role = stills[part][int(name in queries) :: 2]
            videos[part][name] = untrimmed(name, clip, of_role)

    paired = videos["demo-test"]
    return UntrimmedPairs(
        paired=paired,
        copies=tuple(moved(copy, paired) for copy in copies),
        distractors={
            f"far/{number}.mp4": untrimmed(f"far {number}", None, others[third : 2 * third])
            for number in range(NUM_DISTRACTORS)
        },
        validated=videos["demo-validation"],
        definition=definition,
    )


@pytest.mark.slow
def test_vvs_learns_which_frames_of_untrimmed_videos_to_suppress(
    make_once: MakeOnce, tmp_path: Path
) -> None:
    """Its losses fall, saliency's among them; on incidents that no pair shows it finds copies
    better than as it started, and the frames of a clip weigh more than stills."""
    folder = make_once("demo pairs", make_pairs_project)
    pairs = make_untrimmed(folder, config=tmp_path / "pairs.yaml")
    project = empty_project(tmp_path)
    written = {name: video.features for name, video in (pairs.paired | pairs.distractors).items()}
    write_features(project.root, "own-00000", written)
    PairLabels(copies=pairs.copies, distractors=tuple(pairs.distractors)).write(tmp_path)
    config = with_train(
        project,
        source="labelled_pairs",
        pairs=PairsConfig(path=Path("p.csv"), negatives_per_pair=1, min_overlap_s=5, swap=True),
        network=VVS,
        batch_videos=4,
        steps=STEPS,
        validate_every_steps=STEPS,
        optimizer=ADAM,
    )
    views = config.views.model_copy(update={"num_frames": NUM_FRAMES})
    dims = next(iter(written.values())).shape[-1]
    untrained = build_network(VVS, dims=dims, seed=config.train.seed).eval()
    with torch.no_grad():
        before = mean_metric(untrained, pairs.definition, pairs.validated)

    run(project, tmp_path, config.model_copy(update={"views": views}))
    history = [line for line in read_history(tmp_path) if "loss/total" in line]
    tenth = len(history) // 10
    for name in ("loss/total", "loss/saliency"):
        assert fmean(line[name] for line in history[-tenth:]) < fmean(
            line[name] for line in history[:tenth]
        )

    network, _ = load_network(tmp_path / "network")
    assert isinstance(network, VvsNetwork)
    assert network.saliency is not None
    with torch.no_grad():
        after = mean_metric(network.eval(), pairs.definition, pairs.validated)
        aucs = [
            saliency_auc(network.saliency, video, num_regions=1)
            for video in pairs.validated.values()
        ]

    assert after > before
    assert fmean(aucs) > 0.75
