"""The smallest demo corpus, and folders of awkward files, made once for all tests of the corpus."""

from pathlib import Path

import numpy as np
import pytest

from hapvr.demo.corpus import make_demo_corpus, write_mp4
from tests.conftest import write_sound


def moving_square(index: int, *, num_frames: int = 20) -> np.ndarray:
    """Frames [num_frames, 64, 96, 3] of a square that crosses a textured ground of its own."""
    rng = np.random.default_rng(index)
    ground = np.kron(rng.integers(0, 256, (8, 12, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    frames = np.repeat(ground[None], num_frames, axis=0)
    for number, frame in enumerate(frames):
        left = 4 * number % 80
        frame[20:36, left : left + 16] = rng.integers(0, 256, 3)

    return frames


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Three incidents: one to train, one to validate, one to test."""
    return make_demo_corpus(tmp_path_factory.mktemp("demo"), name="tiny", num_incidents=3)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder of six short clips, the last with a single frame."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for index in range(6):
        write_mp4(
            folder / f"clip {index}.mp4",
            moving_square(index, num_frames=1 if index == 5 else 20),
            fps=10,
        )

    return folder


@pytest.fixture
def awkward_clips(clips: Path) -> Path:
    """The same with files that are not videoss, names that need care, and a repeated file."""
    (clips / "text.mp4").write_text("not a video at all")
    (clips / "empty.mp4").touch()
    (clips / "README.md").write_text("about these clips")
    whole = (clips / "clip 0.mp4").read_bytes()
    (clips / "truncated.mp4").write_bytes(whole[: len(whole) // 3])
    write_sound(clips / "sound.mp4")
    (clips / "a 'quoted' \"name\" — 映像.mp4").write_bytes((clips / "clip 1.mp4").read_bytes())
    (clips / "sub").mkdir()
    write_mp4(clips / "sub" / "nested.mp4", moving_square(7), fps=10)
    return clips
