"""`hapvr pdq`: the hashes of a collection of real files find them, their edited copies, and nothing
else."""

import re
from pathlib import Path

import av

from hapvr.steps.frames import make_frames
from hapvr.steps.video_manifest import make_manifest
from hapvr.steps.videos import make_videos
from tests.commands.conftest import Call
from tests.conftest import MakeOnce
from tests.scorer.bundles import BLACK, write_scenes
from tests.steps.data_projects import folder_settings, open_project


def fill(folder: Path) -> None:
    """a; edited: the same pictures, smaller, of another shape and badly compressed; other: only the
    black one is the same."""
    source = write_scenes(folder / "in" / "a.mp4", [1, 2, 3, BLACK])
    write_scenes(folder / "in" / "other.mp4", [4, 5, BLACK])
    with av.open(str(source)) as read, av.open(str(folder / "in" / "edited.mp4"), "w") as write:
        stream = write.add_stream("libx264", rate=8, options={"crf": "38"})
        stream.width = 144
        stream.height = 96
        stream.pix_fmt = "yuv420p"
        for frame in read.decode(video=0):
            write.mux(stream.encode(frame.reformat(width=144, height=96)))
        write.mux(stream.encode())

    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    for key in make_manifest(project).shards:
        make_videos(project, key)
        make_frames(project, key)


def test_exported_hashes_find_their_video_and_its_edited_copy(
    call: Call, make_once: MakeOnce, tmp_path: Path
) -> None:
    config = make_once("hashed collection", fill) / "config.yaml"
    out = tmp_path / "hashes.csv"
    done = call("pdq", "export", "in/a.mp4", "--out", out, "--config", config, "--json")
    assert done.json == {"out": str(out), "videos": 1, "frames": 4, "failed": []}
    assert re.match(
        "video_id,frame,quality,hash,timestamp\nin/a.mp4,0,100,[0-9a-f]{64},0.000\n",
        out.read_text(),
    )
    own, edited = call("pdq", "match", out, "--config", config, "--json").json["matches"]
    assert own | {"lines": own["lines"][:1]} == {
        "video_id": "in/a.mp4",
        "frames": 3,
        "share": 0.75,
        "seconds": [0, 1, 2],
        "distance": 0,
        "lines": [{"line": 2, "label": "in/a.mp4, 0, 100, 0.000", "distance": 0}],
    }
    assert edited["video_id"] == "in/edited.mp4"
    assert edited["seconds"] == [0, 1, 2]
    assert 0 < edited["distance"] <= 31
    assert (
        f"3 frames (75 %), 0:00-0:02\n{0:>12} bits  line 2"
        in call("pdq", "match", out, "--config", config).out
    )


def test_absent_videos_are_named_and_only_csv_is_written(
    call: Call, make_once: MakeOnce, tmp_path: Path
) -> None:
    config = make_once("hashed collection", fill) / "config.yaml"
    done = call("pdq", "export", "in/absent.mp4", "--out", tmp_path / "a.csv", "--config", config)
    assert done.code == 1
    assert "failed   in/absent.mp4: the collection has no stored frames" in done.out
    (tmp_path / "a.mp4").write_text("a video")
    assert call("pdq", "export", "--out", tmp_path / "a.mp4", "--config", config).code == 2
    assert (tmp_path / "a.mp4").read_text() == "a video"
