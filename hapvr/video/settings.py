"""Settings of sources, downloads and sampling: which videos there are, and how they become files
and frames."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hapvr.settings import Rate, Settings

Split = Literal["train", "validation", "test"]
CopyEdits = Literal["usual", "hard"]
Picture = Literal["cropped", "squeezed"]
"""How a frame becomes a square: by its middle, or by all of it with another aspect ratio."""
SamplingMode = Literal["thorough", "key_frames"]
"""Which frames are sampled: those on display, or key frames."""
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...],
    Field(
        description="patterns of files and folders that are not read, such as `*.part.mp4` or "
        "`drafts`; one with a slash applies to the path below the folder"
    ),
]
PARTS = ("", "-train", "-held-out")
"""Suffixes that a source's name may get in the manifest; no other source may have such a name."""


class FilesSource(Settings):
    """`folder`: all files below `path` that have a video's suffix; one that turns out not to be a
    video becomes a failed row. `list`: a CSV or Parquet file with a column `url`, `video_id` (of
    YouTube) or both; an address without an id becomes the id, and so is shown."""

    kind: Literal["folder", "list"]
    name: SourceName
    path: Path
    split: Split = "train"
    exclude: Patterns = ()


class NamedSource(Settings):
    """`demo_corpus`: the generated, labelled corpus; becomes the sources NAME-train,
    NAME-validation and NAME-test. `benchmark`: all videos of a shipped benchmark whose ids are
    YouTube's, e.g. fivr-200k, to test on; `name` is its name."""

    kind: Literal["demo_corpus", "benchmark"]
    name: SourceName


class OwnVideosSource(Settings):
    """A folder of unlabelled clips; held-out clips and edited copies of them become validation and
    test benchmarks."""

    kind: Literal["own_videos"]
    name: SourceName
    path: Path
    exclude: Patterns = ()
    validation_rate: Rate = 0.15
    test_rate: Rate = 0.3
    scenes: Path | None = None
    """a CSV file with the columns `file` and `scene`: clips of one scene are all trained on or all
    held out"""
    edits: CopyEdits = "usual"
    """edits of the held-out clips; `hard`: each combines several strong edits"""


Source = Annotated[FilesSource | NamedSource | OwnVideosSource, Field(discriminator="kind")]


class SamplingConfig(Settings):
    """How videos become frames (method 1)."""

    mode: SamplingMode = "thorough"
    """`thorough`: the frame on display at each sampling time; `key_frames`: only frames that need
    no other, a few seconds apart. Queries are always sampled thoroughly"""
    fps: float = Field(default=1.0, gt=0, le=60)
    short_side_px: int = Field(default=256, ge=32, le=2160)
    max_frames: int = Field(default=3600, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    """a file is given up after so long without progress in reading or decoding; one that goes on
    may take any time"""
    workers: int = Field(default=2, ge=1, description="files decoded at once")
    max_memory_bytes: int = Field(default=6 * 2**30, ge=2**30)
    """address space of a decoding process; one that wants more is killed"""
    archive_codecs: bool = False
    """also decode FFV1, JPEG 2000, v210, CineForm and RealVideo; see SECURITY.md for the risk"""

    def identity_fields(self) -> dict[str, Any]:
        """The settings that determine the frames; the others only say how the work is done. Frames
        of all modes may be mixed: each video records how it was sampled."""
        limits = {"mode", "workers", "timeout_s", "max_memory_bytes", "archive_codecs"}
        return self.model_dump(mode="json", exclude=limits)


class DownloadConfig(Settings):
    """How remote videos are fetched (by yt-dlp, through the proxy that the environment names, if
    any)."""

    max_height_px: int = Field(default=480, ge=144)
    max_bytes: int = Field(default=500_000_000, ge=1)
    rate_limit_bytes_s: int | None = Field(default=None, ge=1)
    retries: int = Field(default=3, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cookies_file: Path | None = None
    workers: int = Field(default=4, ge=1, le=64, description="videos of a shard fetched at once")
    folder: Path | None = None
    """where files are kept, if not in `downloads` of the data root; required if that is an object
    store"""

    def identity_fields(self) -> dict[str, Any]:
        """The settings that determine which file a video becomes; the others only say how it is
        fetched."""
        return self.model_dump(mode="json", include={"max_height_px", "max_bytes"})
