"""`hapvr pdq`: the hashes of a collection of real files find them, their edited copies, and nothing else."""

import csv
from pathlib import Path

import av
import pytest

from hapvr.steps.sources import make_manifest
from hapvr.steps.videos import make_frames, make_videos
from tests.commands.conftest import Call
from tests.conftest import MakeOnce
from tests.scorer.bundles import BLACK, write_scenes
from tests.steps.data_projects import folder_settings, open_project


def write_edited(source: Path, path: Path) -> None:
    """The same pictures, smaller, of another shape and badly compressed."""
    with av.open(str(source)) as read, av.open(str(path), "w") as write:
        stream = write.add_stream("libx264", rate=8, options={"crf": "38"})
        stream.width, stream.height, stream.pix_fmt = 144, 96, "yuv420p"
        for frame in read.decode(video=0):
            write.mux(stream.encode(frame.reformat(width=144, height=96)))
        write.mux(stream.encode())


def fill(folder: Path) -> None:
    write_scenes(folder / "in" / "a.mp4", [1, 2, 3, BLACK])
    write_scenes(folder / "in" / "other.mp4", [4, 5, BLACK])
    write_edited(folder / "in" / "a.mp4", folder / "in" / "edited.mp4")
    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    for key in make_manifest(project).shards:
        make_videos(project, key)
        make_frames(project, key)


@pytest.fixture
def config(make_once: MakeOnce) -> Path:
    return make_once("hashed collection", fill) / "config.yaml"


def test_exported_hashes_find_their_video_and_its_edited_copy(call: Call, config: Path, tmp_path: Path) -> None:
    """By the pictures that show something: black ones match no other."""
    out = tmp_path / "hashes.csv"
    done = call("pdq", "export", "in/a.mp4", "--out", out, "--config", config, "--json")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert done.json == {"out": str(out), "videos": 1, "frames": len(rows), "failed": []}
    assert list(rows[0]) == ["video_id", "frame", "quality", "hash", "timestamp"]
    assert [(row["frame"], row["timestamp"]) for row in rows[:2]] == [("0", "0.000"), ("1", "1.000")]
    found = call("pdq", "match", out, "--config", config, "--json").json
    assert [one["video_id"] for one in found["matches"]] == ["in/a.mp4", "in/edited.mp4"]
    own, edited = found["matches"]
    assert (own["frames"], own["share"], own["seconds"], own["distance"]) == (3, 0.75, [0, 1, 2], 0)
    assert own["lines"][0] == {"line": 2, "label": "in/a.mp4, 0, 100, 0.000", "distance": 0}
    assert (edited["frames"], edited["seconds"]) == (3, [0, 1, 2])
    assert 0 < edited["distance"] <= 31
    assert f"3 frames (75 %), 0:00-0:02\n{0:>12} bits  line 2" in call("pdq", "match", out, "--config", config).out


def test_what_cannot_be_exported_is_said(call: Call, config: Path, tmp_path: Path) -> None:
    """A video without frames; and no file of another kind is replaced."""
    done = call("pdq", "export", "in/absent.mp4", "--out", tmp_path / "a.csv", "--config", config)
    assert (done.code, done.out.splitlines()[1]) == (
        1,
        "failed   in/absent.mp4: the collection has no stored frames of it",
    )
    video = config.parent / "in" / "a.mp4"
    before = video.read_bytes()
    assert call("pdq", "export", "--out", video, "--config", config).code == 2
    assert video.read_bytes() == before
