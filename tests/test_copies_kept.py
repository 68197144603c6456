"""A folder of copies of every kind, from `hapvr index add` to a plan and back: nothing is lost, and
no better copy is moved."""

import hashlib
import shutil
import subprocess
from collections import Counter
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hapvr.demo.camera import Camera, film
from hapvr.demo.scene import Scene
from tests.commands.conftest import Call, call

__all__ = ["call"]

NUM_SCENES = 6
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


def write(path: Path, frames: NDArray[np.uint8], *, crf: int) -> Path:
    """An H.264 file whose index comes first, as of a download."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS), options={"crf": str(crf)})
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_lost_and_no_better_copy_is_moved(call: Call, tmp_path: Path) -> None:
    library = tmp_path / "library"
    data = tmp_path / "data"
    plan = tmp_path / "plan.sh"
    write_library(library)
    before = places(library)
    num_videos = len(before) - 1
    options = ("--data", str(data))
    added = call("index", "add", str(library), *options, "--json")
    assert added.code == 0, added.error
    assert added.json["videos"] == num_videos
    assert added.json["groups"] == NUM_SCENES

    found = call("duplicates", "--plan", str(plan), *options, "--json")
    assert found.code == 0, found.error
    rows = found.json["groups"]
    assert Counter(row["video_id"] for row in rows).most_common(1)[0][1] == 1
    kept = {row["path"] for row in rows if row["keep"]}
    best = {
        str(library / folder / f"clip {n}.mp4")
        for n in range(NUM_SCENES)
        for folder in ("again", "originals")
    }
    assert kept <= best
    assert len(kept) >= NUM_SCENES / 2  # where it is close, none is named
    assert all(row["reason"] for row in rows)

    aside = tmp_path / "copies-aside"
    done = subprocess.run(["bash", plan, "--act"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(library, aside) == contents_of(before)
    assert {before[name] for name in before} == set(contents(library, aside))
    moved = before.keys() - places(library).keys()
    assert len(moved) == 3 * len(kept)
    assert {name.partition("/")[0] for name in moved} <= {"small", "poor", "downloads"}

    again = call("index", "add", *options)
    assert again.code == 0, again.error
    assert f"{len(moved)} videos set aside by a plan" in again.out
    assert "cannot be used" not in again.out

    undone = subprocess.run(["bash", plan, "--undo"], capture_output=True, text=True)
    assert (undone.returncode, undone.stderr) == (0, "")
    assert places(library) == before
    last = call("index", "add", *options, "--json")
    assert last.json["videos"] == num_videos
    assert last.json["set_aside"] == 0
    assert last.json["unusable"] == []


def contents_of(named: dict[str, str]) -> Counter[str]:
    return Counter(named.values())
