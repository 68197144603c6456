"""A copy of a video, as criteria compare it with others of its group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hapvr.search.collection import VideoMetadata
from hapvr.video.facts import FileFacts

CODEC_EFFICIENCY = {
    "libdav1d": 1.9,
    "hevc": 1.55,
    "vp9": 1.45,
    "h264": 1.0,
    "vc1": 0.8,
    "wmv3": 0.8,
    "vp8": 0.8,
    "mpeg4": 0.56,
    "msmpeg4": 0.5,
    "msmpeg4v1": 0.5,
    "msmpeg4v2": 0.5,
    "theora": 0.55,
    "h263": 0.54,
    "flv": 0.5,
    "wmv1": 0.5,
    "wmv2": 0.5,
    "mpeg2video": 0.45,
    "mpeg1video": 0.35,
    "dvvideo": 0.12,
    "prores": 0.12,
    "dnxhd": 0.12,
    "mjpeg": 0.1,
    "webp": 0.1,
    "gif": 0.02,
    "apng": 0.02,
    "png": 0.02,
    "rawvideo": 0.005,
}
"""Bits of H.264 that show as much as one bit of a codec. HEVC, MPEG-4, H.263 and MPEG-2 by Ohm et
al., "Comparison of the Coding Efficiency of Video Coding Standards", IEEE TCSVT 22(12), 2012, table
VI; the others are rough, which MORE_BITS_OF_OTHER_CODECS allows for."""

MORE_PIXELS = 1.15
"""Times as many pixels as another copy, from which on a copy is larger."""
MORE_FPS = 1.1
MORE_BITS = 1.1
MORE_BITS_OF_OTHER_CODECS = 2.0
"""How efficient an encoder was is not known, only what its codec allows."""
HAS_BARS = "it has bars or blurred sides"

MIXED = "it shows more than the copies have in common: another one is contained in it"
EDITED = (
    "it is noisy, or shows more than the copies have in common, such as text or a picture in the "
    "picture"
)


@dataclass(frozen=True)
class Doubt:
    """Why it is not sure that a file is no better than the other copies of its group."""

    of_group: str
    """in the sentence on a group in which no copy is named to keep"""
    of_copy: str
    """in the sentence on a copy that stays beside the one to keep"""


UNSURE = Doubt("it is not sure that these are copies", "it is not sure that it is a copy")
SHORT = Doubt(
    "they are shorter than 4 s, so they may be parts of one scene, one after the other",
    "it is shorter than 4 s, so it may be another part of the same scene",
)
DIFFERENT = Doubt(
    "their pictures differ, so one of them may show more, such as text or a picture in the picture",
    "its pictures differ from those of the others, so it may show more or less than they do",
)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy to choose from."""

    video_id: str
    metadata: VideoMetadata
    facts: FileFacts | None = None
    """None where its file could not be measured"""
    spoilt: str = ""
    """MIXED, EDITED or "" """
    doubt: Doubt | None = None

    @property
    def measured(self) -> FileFacts:
        if self.facts is None:
            raise ValueError(f"{self.video_id} was not measured")
        return self.facts

    @property
    def num_pixels(self) -> int:
        """Of the film, without bars and blurred sides."""
        width, height = self.metadata.content_px
        return width * height

    @property
    def has_bars(self) -> bool:
        return min(self.metadata.content) < 1

    @property
    def picture_bits(self) -> float:
        """Of the video stream, as H.264 would need for as much."""
        return self.measured.video_bytes * CODEC_EFFICIENCY.get(self.metadata.codec, 1.0)


@dataclass(frozen=True)
class Verdict:
    """What one criterion says."""

    left: Sequence[Copy]
    """the copies that are not clearly worse"""
    merit: str = ""
    """what those have that the others lack"""
    faults: Mapping[str, str] = field(default_factory=dict)
    """id -> what is worse about an excluded copy"""
    doubt: str = ""
    """why no copy must be named, else "" """
    staying: Mapping[str, str] = field(default_factory=dict)
    """id -> why a copy that is not among those left may be no worse"""


Criterion = Callable[[Sequence[Copy]], Verdict]


def excluding(
    copies: Sequence[Copy], left: Sequence[Copy], *, merit: str, fault: Callable[[Copy], str]
) -> Verdict:
    """The verdict that excludes all copies but those that are left.

    fault: what is worse about an excluded copy
    """
    faults = {copy.video_id: fault(copy) for copy in copies if copy not in left}
    return Verdict(left, merit, faults)


def richest(copies: Sequence[Copy]) -> Copy:
    """The copy with the most picture data."""
    return max(copies, key=lambda copy: copy.picture_bits)


def has_about_as_many_bits(copy: Copy, best: Copy) -> bool:
    """Whether a copy has about as much picture data as another one."""
    same_codec = copy.metadata.codec == best.metadata.codec
    enough = MORE_BITS if same_codec else MORE_BITS_OF_OTHER_CODECS
    return enough * copy.picture_bits >= best.picture_bits
