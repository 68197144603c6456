"""Copies to choose from, without files."""

import hashlib
from pathlib import Path
from typing import Any

from hapvr.search.collection import VideoMetadata
from hapvr.search.copies import Copy
from hapvr.video.facts import FileFacts

SHARP = (0.8, 0.8, 0.7, 0.5)
"""Detail of a picture that has all that its pixels can show."""
FILE = {
    "num_bytes",
    "width_px",
    "height_px",
    "codec",
    "content",
    "missing",
    "mean_picture",
    "mean_colours",
    "moments",
    "still_s",
}


def copy(name: str, **changes: Any) -> Copy:
    """A copy of 640 x 360 pixels, 10 s, 25 pictures a second, 1 MB of H.264, without sound."""
    file: dict[str, Any] = {
        "num_bytes": 10**6,
        "duration_s": 10.0,
        "width_px": 640,
        "height_px": 360,
        "codec": "h264",
    }
    facts: dict[str, Any] = {
        "video_bytes": 10**6,
        "length_s": 10.0,
        "declared_s": None,
        "fps": 25.0,
        "sound": False,
        "damage": "",
        "detail": SHARP,
        "new_share": 1.0,
    }
    sha256 = changes.pop("sha256", hashlib.sha256(name.encode()).hexdigest())
    spoilt = changes.pop("spoilt", "")
    measured = changes.pop("measured", True)
    for key, value in changes.items():
        (file if key in FILE else facts)[key] = value
    metadata = VideoMetadata(path=Path(name), sha256=sha256, **file)
    return Copy(
        video_id=name,
        metadata=metadata,
        facts=FileFacts(**facts) if measured else None,
        spoilt=spoilt,
    )
