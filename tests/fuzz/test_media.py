"""Bytes of videos: whatever is damaged, a file is frames or one reason, in bounded time and
memory."""

import time
from pathlib import Path

import pytest
from hypothesis import strategies as st

from hapvr.video.pool import sample_videos
from hapvr.video.settings import SamplingConfig
from tests.fuzz.budget import damage, fuzz
from tests.video.conftest import VideoWriter

REASONS = {
    "",
    "empty_file",
    "not_video",
    "no_video_stream",
    "unsupported_codec",
    "no_frames",
    "decode_error",
}
REASONS |= {"too_large", "too_long"}
CONFIG = SamplingConfig(timeout_s=30, short_side_px=64, workers=1)
FILES = 24


@pytest.mark.slow
def test_damaged_videos_are_rows(tmp_path: Path) -> None:
    """mp4, mkv, webm and mpeg-ts; the decoder neither hangs nor dies."""
    writer = VideoWriter(tmp_path)
    sources = [
        writer.noise("a.mp4", num_frames=12, container_options={"movflags": "faststart"}),
        writer.numbered("b.mkv"),
        writer.numbered("c.webm", num_frames=10, codec="libvpx"),
        writer.numbered("d.ts"),
        writer.numbered("e.mp4", codec="mpeg4"),
        writer.song(),
    ]
    files = st.sampled_from(sources).flatmap(
        lambda path: st.tuples(st.just(path.suffix), damage(path.read_bytes()))
    )

    @fuzz(1, drawn=st.lists(files, min_size=FILES, max_size=FILES))
    def run(drawn: list[tuple[str, bytes]]) -> None:
        items = []
        for number, (suffix, data) in enumerate(drawn):
            path = tmp_path / f"damaged-{number}{suffix}"
            path.write_bytes(data)
            items.append((f"x/{number}", path))

        begun = time.monotonic()
        rows = list(sample_videos(items, config=CONFIG))
        assert [row.video_id for row in rows] == [video_id for video_id, _ in items]
        assert {row.reason for row in rows} <= REASONS, [row.message for row in rows]
        assert all((row.reason == "") == (len(row.jpegs) > 0) for row in rows)
        assert time.monotonic() - begun < FILES * CONFIG.timeout_s

    run()
