"""Pairs of real files: similarity, segments, limits, errors, caching and threads."""

import os
from pathlib import Path

import pytest

from hapvr.errors import VideoError
from hapvr.scorer.access import ANY_HOST, Access
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import fit_calibration
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.segments import Segment
from tests.scorer.bundles import SAMPLING, make_bundle, write_scenes
from tests.video.site import serve

FRAME_S = 1 / SAMPLING.fps


def assert_spans(
    found: tuple[Segment, ...] | None, wanted: list[tuple[float, float, float, float]]
) -> None:
    """The segments are these, in order of their times in the query, to a frame."""
    times = sorted(
        (s.query_start_s, s.query_end_s, s.reference_start_s, s.reference_end_s) for s in found
    )
    assert len(times) == len(wanted), times
    for got, expected in zip(times, wanted, strict=True):
        assert got == pytest.approx(expected, abs=FRAME_S)


@pytest.mark.slow
def test_segments_of_real_clips_have_their_times(scorer: VideoScorer, scenes: Path) -> None:
    """A copy within a longer video, two parts that swapped places, the whole of a video, and
    nothing."""
    names = ["copy.mp4", "two.mp4", "a.mp4", "b.mp4"]
    rows = scorer.score_pairs([(scenes / "a.mp4", scenes / name) for name in names], segments=True)
    assert_spans(rows[0].segments, [(2, 5, 4, 7)])
    assert_spans(rows[1].segments, [(0, 2, 6, 8), (3, 6, 1, 4)])
    assert_spans(rows[2].segments, [(0, 6, 0, 6)])
    assert rows[3].segments == ()
    assert scorer.score_pairs([(scenes / "a.mp4", scenes / "b.mp4")])[0].segments is None


@pytest.mark.slow
def test_calibration_gives_probability_and_frame_threshold(tmp_path: Path, scenes: Path) -> None:
    """The bundle's calibration turns each similarity into its probability; its frame threshold
    decides on segments."""
    fitted = fit_calibration([0.5] * 10 + [0.2] * 10, [-0.5] * 30, source={}, frame_threshold=0.2)
    scorer = load_bundle(make_bundle(tmp_path, calibration=fitted))
    assert scorer.calibration == fitted
    (row,) = scorer.score_pairs([(scenes / "a.mp4", scenes / "b.mp4")], segments=True)
    assert row.probability == fitted.probability(row.similarity, one_course=row.one_course)
    assert row.segments, "frames above 0.2 are everywhere"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("copy.mp4", True), ("b.mp4", False)])
def test_aligned_frames_of_a_copy_follow_one_course(
    tmp_path: Path, scenes: Path, name: str, expected: bool
) -> None:
    """Those of another video do not, though each of its frames counts as the same."""
    fitted = fit_calibration([0.5] * 10 + [0.2] * 10, [-0.5] * 30, source={}, frame_threshold=0.2)
    scorer = load_bundle(make_bundle(tmp_path, calibration=fitted))
    (row,) = scorer.score_pairs([(scenes / "a.mp4", scenes / name)])
    assert row.one_course == expected


def test_unusable_videos_cost_their_rows_only(
    scorer: VideoScorer, scenes: Path, tmp_path: Path
) -> None:
    """No video, absent, empty, a folder, a pipe, impossible names: rows with a reason among good
    rows, in order."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.mp4")
    bad = {
        str(scenes / "bad.mp4"): "not_video",
        str(scenes / "absent.mp4"): "missing_file",
        str(tmp_path / "empty.mp4"): "empty_file",
        str(tmp_path): "not_video",
        str(tmp_path / "pipe.mp4"): "not_video",
        "nul\0byte.mp4": "missing_file",
        "x" * 5000: "missing_file",
        "": "not_video",
        "file:///etc/passwd": "not_allowed",
        "http://[::1": "not_allowed",
        "https://example.org/v.mp4": "not_allowed",
    }
    good = str(scenes / "a.mp4")
    pairs = [
        (good, good),
        *((good, name) for name in bad),
        (str(scenes / "bad.mp4"), good),
        (good, good),
    ]
    rows = scorer.score_pairs(pairs)
    assert rows[0] == rows[-1]
    assert rows[0].similarity is not None
    for row, reason in zip(rows[1:-1], [*bad.values(), "not_video"], strict=True):
        assert row.similarity is None
        assert row.error.startswith(f"{reason}: "), row


def test_limits_give_rows_with_errors(scorer: VideoScorer, scenes: Path) -> None:
    """Too many pairs, bytes, frames and pairs of frames, too little time: the other rows are
    scored."""
    a = scenes / "a.mp4"
    b = scenes / "b.mp4"
    alone = scorer.score(b, b)

    def errors(**limits: float) -> list[str]:
        changed = scorer.limits.model_copy(update=limits)
        rows = scorer.score_pairs([(b, b), (b, a), (a, a)], limits=changed)
        assert [row.similarity for row in rows if not row.error] == [alone] * sum(
            not row.error for row in rows
        )
        return [row.error.split(":")[0] for row in rows]

    assert errors(max_pairs=1) == ["", "too_many_pairs", "too_many_pairs"]
    assert errors(max_frames=8) == ["", "too_long", "too_long"]
    assert errors(max_bytes=b.stat().st_size) == ["", "too_large", "too_large"]
    assert errors(max_frame_pairs=100) == ["", "too_much_work", "too_much_work"]
    assert errors(request_timeout_s=1e-9) == ["timeout"] * 3


def test_files_outside_the_roots_are_refused(
    scorer: VideoScorer, scenes: Path, tmp_path: Path
) -> None:
    """Other folders, `..` and links that lead out are not allowed, whether or not there is a
    file."""
    root = tmp_path / "root"
    write_scenes(root / "in.mp4", [0, 1])
    (root / "link.mp4").symlink_to(scenes / "a.mp4")
    inside = str(root / "in.mp4")
    names = [scenes / "a.mp4", root / ".." / "x.mp4", root / "link.mp4", root / "no.mp4"]
    access = Access(roots=(root.resolve(),))
    rows = scorer.score_pairs(
        [(inside, inside), *[(inside, name) for name in names]], access=access
    )
    assert rows[0].similarity is not None
    reasons = [row.error.split(":")[0] for row in rows[1:]]
    assert reasons == ["not_allowed", "not_allowed", "not_allowed", "missing_file"]


@pytest.mark.slow
def test_urls_of_allowed_hosts_are_scored(scorer: VideoScorer, scenes: Path) -> None:
    """A fetched clip scores as the file does; an absent one and one that is too large are rows."""
    with serve((scenes / "copy.mp4").read_bytes()) as site:
        urls = [f"{site.address}/{name}" for name in ("copy.mp4", "404/absent.mp4", "page.html")]
        access = Access(hosts=frozenset({"127.0.0.1"}))
        rows = scorer.score_pairs([(scenes / "a.mp4", url) for url in urls], access=access)
        small = scorer.limits.model_copy(update={"max_bytes": 1000})
        (large,) = scorer.score_pairs(
            [(urls[0], urls[0])], access=Access(hosts=frozenset({ANY_HOST})), limits=small
        )
        (refused,) = scorer.score_pairs([(urls[0], urls[0])])

    assert rows[0].similarity == pytest.approx(scorer.score(scenes / "a.mp4", scenes / "copy.mp4"))
    assert rows[1].error.startswith("http_404: ")
    assert rows[2].similarity is None
    assert large.error.startswith("too_large: ")
    assert refused.error.startswith("not_allowed: ")


def test_changed_file_is_read_again(scorer: VideoScorer, tmp_path: Path, scenes: Path) -> None:
    """The cache goes by the file, not by its name: absent, then bad, then good, then another."""
    clip = tmp_path / "clip.mp4"
    with pytest.raises(VideoError, match="No such file"):
        scorer.features(clip)
    clip.write_text("no video yet")
    with pytest.raises(VideoError, match="no known format"):
        scorer.features(clip)
    clip.write_bytes((scenes / "a.mp4").read_bytes())
    first = scorer.features(clip)
    assert first.shape[0] == 12
    assert scorer.features(clip) is first
    clip.write_bytes((scenes / "b.mp4").read_bytes())
    assert scorer.features(clip).shape[0] == 8
