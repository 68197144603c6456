"""A folder of copies of every kind, from `hapvr index add` to a plan and back: nothing is lost, and
no better copy is moved."""

import hashlib
import json
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hapvr.demo.camera import Camera, film
from hapvr.demo.scene import Scene
from tests.commands.conftest import invoke

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
]

NUM_SCENES = 4
SECONDS = 5.0
FPS = 12
GOOD = 10
USUAL = 18
POOR = 36
"""Constant rate factors of x264."""


def pictures(number: int) -> NDArray[np.uint8]:
    """[N, H, W, 3] of a scene that is like no other."""
    scene = Scene(f"kept-{number}", number, duration_s=SECONDS + 2)
    camera = Camera(f"kept-{number}", 0)
    return film(scene, camera, start_s=0.5, duration_s=SECONDS, fps=FPS, name=f"kept-{number}")


def smaller(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = frames.shape[1:3]
    size = (width // 4 * 2, height // 4 * 2)
    return np.stack([np.asarray(Image.fromarray(frame).resize(size)) for frame in frames])


def write(path: Path, frames: NDArray[np.uint8], *, crf: int, preset: str = "medium") -> Path:
    """An H.264 file whose index comes first, as of a download."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(
            "libx264", rate=Fraction(FPS), options={"crf": str(crf), "preset": preset}
        )
        stream.height = frames.shape[1] // 2 * 2
        stream.width = frames.shape[2] // 2 * 2
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())

    return path


def write_library(folder: Path) -> None:
    """Of each scene the original, and what is worse in one way each; files of one name, and a bin
    that holds the best file of all."""
    for number in range(NUM_SCENES):
        frames = pictures(number)
        name = f"clip {number}.mp4"
        original = write(folder / "originals" / name, frames, crf=USUAL)
        write(folder / "small" / name, smaller(frames), crf=GOOD)
        write(folder / "poor" / name, frames, crf=POOR)
        (folder / "again").mkdir(exist_ok=True)
        shutil.copy(original, folder / "again" / name)
        broken = write(folder / "downloads" / name, frames, crf=GOOD)
        data = broken.read_bytes()
        broken.write_bytes(data[: len(data) * 9 // 10])

    write(folder / "$RECYCLE.BIN" / "S-1-5-21" / "$R0.mp4", pictures(0), crf=GOOD)


def contents(*folders: Path) -> Counter[str]:
    """How often each content is there, of names that are not hidden."""
    return Counter(
        hashlib.sha256(file.read_bytes()).hexdigest()
        for folder in folders
        for file in folder.rglob("[!.]*.mp4")
    )


def places(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.mp4")
    }


def told(*words: object) -> dict[str, Any]:
    """What a verb of `hapvr` says as JSON."""
    result = invoke(*map(str, words), "--json")
    assert result.exit_code == 0, result.stderr
    output: dict[str, Any] = json.loads(result.stdout)
    return output


@dataclass(frozen=True)
class Story:
    """What was said and where the files lay: at first, once the plan was carried out, and once that
    was undone."""

    library: Path
    added: dict[str, Any]
    members: list[dict[str, Any]]
    """of the groups of copies"""
    places_before: dict[str, str]
    """the digest of each file by its place"""
    acted: subprocess.CompletedProcess[str]
    contents_after: Counter[str]
    places_after: dict[str, str]
    added_after: str
    undone: subprocess.CompletedProcess[str]
    places_undone: dict[str, str]
    added_undone: dict[str, Any]

    @property
    def kept(self) -> set[str]:
        """Paths of the files that the plan keeps."""
        return {row["path"] for row in self.members if row["keep"]}

    @property
    def left(self) -> set[str]:
        """Paths of the files that may be no worse than the kept ones."""
        return {row["path"] for row in self.members if row["reason"].startswith("It stays: ")}

    @property
    def moved(self) -> set[str]:
        """Places that are empty once the plan was carried out."""
        return self.places_before.keys() - self.places_after.keys()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A library is added, a plan made, carried out and undone, and the library added after each."""
    folder = tmp_path_factory.mktemp("copies")
    library = folder / "library"
    options = ("--data", folder / "data")
    plan = folder / "plan.sh"
    write_library(library)
    places_before = places(library)
    added = told("index", "add", library, *options)
    members = told("duplicates", "--plan", plan, *options)["groups"]
    acted = subprocess.run(["bash", plan, "--act"], capture_output=True, text=True)
    contents_after = contents(library, folder / "copies-aside")
    places_after = places(library)
    again = invoke("index", "add", *map(str, options))
    assert again.exit_code == 0, again.stderr
    undone = subprocess.run(["bash", plan, "--undo"], capture_output=True, text=True)
    return Story(
        library=library,
        added=added,
        members=members,
        places_before=places_before,
        acted=acted,
        contents_after=contents_after,
        places_after=places_after,
        added_after=again.stdout,
        undone=undone,
        places_undone=places(library),
        added_undone=told("index", "add", *options),
    )


def test_what_lies_in_a_bin_is_not_added(story: Story) -> None:
    assert story.added["videos"] == len(story.places_before) - 1


def test_each_scene_is_a_group(story: Story) -> None:
    assert story.added["groups"] == NUM_SCENES


def test_a_file_is_in_one_group_and_told_why_it_is_kept_or_not(story: Story) -> None:
    ids = [row["video_id"] for row in story.members]
    assert len(ids) == len(set(ids))
    assert all(row["reason"] for row in story.members)


def test_only_a_best_copy_is_kept(story: Story) -> None:
    """An original or what has its bytes; where it is close, none is named."""
    best = {
        str(story.library / folder / f"clip {number}.mp4")
        for number in range(NUM_SCENES)
        for folder in ("again", "originals")
    }
    assert story.kept <= best
    assert len(story.kept) >= NUM_SCENES / 2


def test_a_plan_is_carried_out_without_a_word_of_an_error(story: Story) -> None:
    assert story.acted.returncode == 0
    assert story.acted.stderr == ""


def test_nothing_is_lost(story: Story) -> None:
    """Each content is as often there as before, in the library or set aside."""
    assert story.contents_after == Counter(story.places_before.values())


def test_no_better_copy_is_moved(story: Story) -> None:
    assert {name.partition("/")[0] for name in story.moved} <= {"small", "poor", "downloads"}
    assert len(story.moved) + len(story.left) == 3 * len(story.kept)
    assert len(story.left) < len(story.moved)


def test_what_a_plan_has_moved_is_said_to_be_set_aside(story: Story) -> None:
    """And not to be unusable."""
    assert f"{len(story.moved)} videos set aside by a plan" in story.added_after
    assert "cannot be used" not in story.added_after


def test_a_plan_is_undone(story: Story) -> None:
    """Every file lies where it lay, without a word of an error."""
    assert story.undone.returncode == 0
    assert story.undone.stderr == ""
    assert story.places_undone == story.places_before


def test_what_came_back_is_a_video_as_before(story: Story) -> None:
    assert story.added_undone["videos"] == story.added["videos"]
    assert story.added_undone["set_aside"] == 0
    assert story.added_undone["unusable"] == []
