"""The paper's batch, 64 videos in two views of 28 frames, on a processor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_GIB = 6

PROGRAM = """
import resource

import torch

from hapvr.networks.pairs import positive_pairs, video_pair_labels
from hapvr.networks.pseudo import pseudo_labels
from hapvr.networks.settings import PseudoLabelSettings
from hapvr.losses.objective import Objective
from hapvr.losses.settings import ObjectiveSettings
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

generator = torch_rng("memory")
features = torch.nn.functional.normalize(torch.randn(128, 28, 9, 512, generator=generator), dim=-1)
# A third of the strong views holds another video as well, as video-in-video makes them.
sources = [(f"v{i}",) for i in range(64)]
sources += [(f"v{i}", f"v{(i + 1) % 64}") if i % 3 == 0 else (f"v{i}",) for i in range(64)]
labels = video_pair_labels(sources)
pairs = positive_pairs(labels)
teacher = torch.randn(128, 28, 384, generator=generator)
frame_labels = pseudo_labels(teacher[pairs[:, 0]], teacher[pairs[:, 1]], PseudoLabelSettings())
network = SimilarityNetwork(NetworkSettings(), dims=512)
clips = network.embed(features)
output = Objective(ObjectiveSettings())(network.compare(clips, clips), labels, frame_labels, pairs)
output.total.backward()
assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
def test_a_training_step_of_the_paper_fits_into_six_gib() -> None:
    """Forward and backward of the whole objective, frame level included, in a process of its own."""
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=True)
    assert float(found.stdout) < LIMIT_GIB
