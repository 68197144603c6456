"""Which copy is kept: one row for each way in which a worse one could win."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from hapvr.search.copies import EDITED, MIXED
from hapvr.search.keep import Choice, choose
from hapvr.search.looks import is_mirrored
from hapvr.settings import DuplicatesSettings
from hapvr.video.looks import moments
from tests.search.copies import copy

SOFT = (0.3, 0.3, 0.2, 0.2)
"""Detail of a picture that was enlarged to about three times its size."""
GREY = np.full((64, 64, 3), 100, np.uint8)
"""What the mean of a video's frames looks like."""
LOGO = GREY.copy()
LOGO[6:10, 52:58] += 60
MIRROR = np.tile(np.arange(16, dtype=np.uint8) * 10, (16, 1))


def still(picture: NDArray[np.uint8], num_frames: int) -> bytes:
    """The moments of a film in which nothing moves."""
    return moments(np.stack(num_frames * [picture.astype(np.float32)]))


def chosen(good: dict[str, Any], bad: dict[str, Any], **settings: Any) -> Choice:
    """Of in/good and in/bad, in both orders, which must not matter."""
    copies = [copy("in/good", **good), copy("in/bad", **bad)]
    choice = choose(copies, DuplicatesSettings(**settings))
    assert choose(copies[::-1], DuplicatesSettings(**settings)) == choice
    return choice


HD = {"width_px": 1920, "height_px": 1080}
# what the better one has, what the worse one has, and what is said of both
BETTER: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "whole": (
        {},
        {**HD, "video_bytes": 9 * 10**6, "damage": "it has 202 of the 244 pictures of its index"},
        "it can be read whole",
        "only a part of it can be read (it has 202 of the 244 pictures of its index)",
    ),
    "whole by its frames": (
        {},
        {"video_bytes": 9 * 10**6, "missing": "frames end at 8.0 s of 9.8 s"},
        "it can be read whole",
        "only a part of it can be read (frames end at 8.0 s of 9.8 s)",
    ),
    "longer": (
        {},
        {**HD, "length_s": 8.7, "video_bytes": 9 * 10**6},
        "it is the longest (10.0 s)",
        "it is shorter, 8.7 s against 10.0 s",
    ),
    "more pixels": (
        HD,
        {"video_bytes": 9 * 10**6, "fps": 50.0},
        "it has the most pixels of the film (1920 x 1080)",
        "it has fewer pixels, 640 x 360",
    ),
    "more pictures": (
        {"fps": 50.0},
        {"video_bytes": 1_050_000},
        "it has the most pictures per second (50)",
        "it has fewer pictures per second, 25",
    ),
    "no repeated pictures": (
        {},
        {"fps": 50.0, "new_share": 0.55, "video_bytes": 1_050_000},
        "it repeats no pictures",
        "it repeats pictures",
    ),
    "no bars": (
        {},
        {"height_px": 480, "content": (1.0, 0.74), "video_bytes": 9 * 10**6},
        "the film fills its picture",
        "it has bars or blurred sides",
    ),
    "more bits that show more": (
        {"fineness": 5.0, "video_bytes": 2 * 10**6},
        {"fineness": 4.6},
        "it has the most picture data (2 MB of h264)",
        "it has less picture data, 1 MB of h264",
    ),
    "more bits than what shows blocks": (
        {"fineness": 4.4, "blockiness": 1.07, "video_bytes": 2 * 10**6},
        {"fineness": 4.95, "blockiness": 1.45},
        "it has the most picture data (2 MB of h264)",
        "it has less picture data, 1 MB of h264",
    ),
    "as fine, though one scale of its detail is less": (
        {"detail": (0.8, 0.8, 0.5, 0.5), "fineness": 5.0, "video_bytes": 2 * 10**6},
        {"fineness": 4.6},
        "it has the most picture data (2 MB of h264)",
        "it has less picture data, 1 MB of h264",
    ),
    "more bits": (
        {"video_bytes": 2 * 10**6},
        {"num_bytes": 10**9},  # of sound or attachments
        "it has the most picture data (2 MB of h264)",
        "it has less picture data, 1 MB of h264",
    ),
    "not enlarged to its own size": (
        {"video_bytes": 2 * 10**6},
        {"detail": SOFT},
        "it shows the most detail",
        "it shows less detail than another one of its size",
    ),
    "a newer codec": (
        {"codec": "hevc"},
        {"codec": "mpeg2video", "video_bytes": 1_500_000},
        "it has the most picture data (1 MB of hevc)",
        "it has less picture data, 1.5 MB of mpeg2video",
    ),
    "sound": (
        {"sound": True},
        {"video_bytes": 9 * 10**6, "fps": 50.0},
        "it has sound",
        "it has no sound",
    ),
    "pure": (
        {},
        {**HD, "spoilt": MIXED},
        "it shows only what the copies have in common",
        MIXED,
    ),
    "not edited": (
        {},
        {**HD, "spoilt": EDITED},
        "it shows only what the copies have in common",
        EDITED,
    ),
}


@pytest.mark.parametrize("case", BETTER)
def test_the_better_copy_is_kept_and_said_why(case: str) -> None:
    good, bad, merit, fault = BETTER[case]
    choice = chosen(good, bad)
    assert choice.named == "in/good"
    assert choice.reasons == {"in/good": f"Kept: {merit}.", "in/bad": f"Not kept: {fault}."}


DOUBTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "alike": ({}, {"video_bytes": 1_050_000}, "in/bad and in/good are too much alike"),
    "other codecs of like worth": ({"codec": "hevc"}, {}, "too much alike"),
    "damaged both": ({"damage": "a"}, {"damage": "b"}, "of each of the copies only a part"),
    "not measured": ({}, {"measured": False}, "the file of in/bad could not be measured"),
    "a length of which nobody is sure": (
        {},
        {"length_s": 8.0, "declared_s": 10.0},
        "it is not sure how long in/bad is: its pictures last 8.0 s, its header says 10.0 s",
    ),
    "a wrong clock": ({}, {"length_s": 900.0}, "differ too much for copies"),
    "enlarged": ({}, {**HD, "detail": SOFT, "video_bytes": 9 * 10**6}, "may have been enlarged"),
    "enlarged to its own size": (
        {},
        {"detail": SOFT, "video_bytes": 9 * 10**6},
        "in/bad shows less detail than in/good, as if it was enlarged, but has more picture data",
    ),
    "enlarged, and with more pictures": (
        {},
        {"detail": SOFT, "video_bytes": 10**5, "fps": 50.0},
        "but has more pictures per second",
    ),
    "a part is missing": (
        {"pause_s": 0.04},
        {"pause_s": 0.6, "video_bytes": 9 * 10**6},
        "in/bad has no new picture for 0.6 s where in/good has some",
    ),
    "longer by pictures that stand still": (
        {},
        {"length_s": 12.0, "still_s": 2.0, "video_bytes": 10**5},
        "in/bad is longer, but shows nothing new for 2.0 s at its ends, so in/good may show as",
    ),
    "more pictures of less data": (
        {},
        {"fps": 50.0, "video_bytes": 800_000},
        "in/bad has more pictures per second, but less picture data than in/good",
    ),
    "more pictures of what hardly moves": (
        {"new_share": None},
        {"new_share": None, "fps": 50.0, "video_bytes": 2 * 10**6},
        "in/bad has more pictures per second, but so little moves that they may only repeat others",
    ),
    "more pictures, each second one mixed, as compression mixes them": (
        {"new_share": 0.5},
        {"new_share": 0.5, "fps": 50.0, "video_bytes": 2 * 10**6},
        "but some of them only repeat others",
    ),
    "a copy of a copy with more bits": (
        {"fineness": 5.0, "blockiness": 1.1},
        {"fineness": 4.6, "blockiness": 1.1, "video_bytes": 2 * 10**6},
        "in/bad has more picture data than in/good, but shows no more that is fine",
    ),
    "single pictures are missing": (
        {"num_pictures": 250},
        {"num_pictures": 190, "video_bytes": 2 * 10**6},
        "in/bad has 190 pictures, but in/good has 250 in about the same time",
    ),
    "slowed": (
        {"fps": 30.0, "num_pictures": 300},
        {"fps": 25.0, "num_pictures": 300, "length_s": 12.0},
        "in/bad is longer, but has as many pictures as in/good: one of them plays at another speed",
    ),
    "longer with a logo": (
        {"mean_colours": GREY.tobytes(), "moments": still(GREY, 10)},
        {"mean_colours": LOGO.tobytes(), "moments": still(LOGO, 11), "length_s": 11.0},
        "in/bad is longer, but its pictures differ in one place from those of in/good",
    ),
    "a subtitle for two seconds": (
        {"mean_colours": GREY.tobytes(), "moments": still(GREY, 10)},
        {
            "mean_colours": GREY.tobytes(),
            "moments": still(GREY, 4) + still(LOGO, 2) + still(GREY, 4),
            "video_bytes": 9 * 10**6,
        },
        "their pictures differ",
    ),
    "woven of two pictures": (
        {},
        {"woven": True, "video_bytes": 2 * 10**6},
        "in/bad has the rows of two pictures in one, as of an interlaced film, in/good has not",
    ),
    "a few more pictures": (
        {},
        {"fps": 30.0, "video_bytes": 2 * 10**6},
        "in/bad has a few more pictures per second, which a converter may have added",
    ),
    "pictures of which some are repeated": (
        {},
        {"fps": 75.0, "new_share": 0.67, "video_bytes": 2 * 10**6},
        "in/bad has more pictures per second, but some of them only repeat others",
    ),
    "pictures that are repeated, of more data": (
        {},
        {"fps": 50.0, "new_share": 0.5, "video_bytes": 2 * 10**6},
        "in/bad has more pictures per second, but some of them only repeat others",
    ),
    "a logo": (
        {"mean_colours": GREY.tobytes()},
        {"mean_colours": LOGO.tobytes(), "video_bytes": 9 * 10**6},
        "their pictures differ",
    ),
    "brighter": (
        {"mean_colours": GREY.tobytes()},
        {"mean_colours": (GREY + 20).tobytes(), **HD},
        "their pictures differ",
    ),
    "black and white mapped wrong": (
        {"mean_colours": GREY.tobytes()},
        {"mean_colours": (GREY + 8).tobytes(), "video_bytes": 9 * 10**6},
        "their pictures differ",
    ),
    "more detail here and there": (
        {"detail": (0.8, 0.8, 0.7, 0.2)},
        {"detail": (0.8, 0.2, 0.7, 0.5)},
        "too much alike",
    ),
    "enlarged to noise": (
        {"detail": (0.72, 0.56, 0.43, 0.30)},
        {"width_px": 1280, "height_px": 720, "detail": (0.26, 0.30, 0.40, 0.57)},
        "may have been enlarged",
    ),
    "detail not known": ({}, {**HD, "detail": ()}, "may have been enlarged"),
    "a little larger": ({}, {"width_px": 854, "height_px": 480}, "may have been enlarged"),
    "larger without sound": ({"sound": True}, HD, "in/bad has more pixels, but no sound"),
    "larger with bars": (
        {},
        {**HD, "content": (1.0, 0.75)},
        "in/bad has more pixels, but bars or blurred sides",
    ),
    "mirrored": (
        {"mean_picture": MIRROR.tobytes()},
        {"mean_picture": MIRROR[:, ::-1].tobytes(), "video_bytes": 9 * 10**6},
        "some are mirrored, and it cannot be told which",
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_no_copy_is_named_where_it_is_close_or_not_known(case: str) -> None:
    good_facts, bad_facts, doubt = DOUBTS[case]
    choice = chosen(good_facts, bad_facts)
    assert choice.named is None
    assert len(set(choice.reasons.values())) == 1
    assert doubt in choice.reasons["in/good"]
    assert choice.reasons["in/good"].startswith("No copy is named to keep: ")


def test_what_is_behind_the_limit_of_frames_is_not_damaged() -> None:
    cut = {"missing": "the first 3600 s were read; see sampling.max_frames"}
    assert chosen({**cut, "video_bytes": 2 * 10**6}, cut).named == "in/good"


def test_the_mirrored_one_of_three_is_not_kept() -> None:
    plain = MIRROR.tobytes()
    turned = MIRROR[:, ::-1].tobytes()
    copies = [
        copy("a", mean_picture=turned, video_bytes=9 * 10**6),
        copy("b", mean_picture=plain),
        copy("c", mean_picture=plain, video_bytes=2 * 10**6),
    ]
    for first in range(3):
        choice = choose(copies[first:] + copies[:first], DuplicatesSettings())
        assert choice.named == "c"
        assert choice.reasons["a"] == "Not kept: it is mirrored."


def test_what_looks_otherwise_than_most_copies_stays() -> None:
    """Beside the best of the others."""
    copies = [
        copy("logo", mean_colours=LOGO.tobytes(), video_bytes=9 * 10**6),
        copy("plain", mean_colours=GREY.tobytes(), video_bytes=2 * 10**6),
        copy("compressed", mean_colours=(GREY + 5).tobytes()),
    ]
    for first in range(3):
        choice = choose(copies[first:] + copies[:first], DuplicatesSettings())
        assert choice.named == "plain"
        assert set(choice.staying) == {"logo"}
        assert choice.reasons["logo"].startswith("It stays: its pictures differ")


@pytest.mark.parametrize(
    ("worse", "fault"),
    [
        pytest.param({"damage": "hole"}, "only a part of it can be read (hole)", id="damaged"),
        pytest.param({"length_s": 8.0}, "it is shorter, 8.0 s against 10.0 s", id="shorter"),
        pytest.param(
            {"content": (1.0, 0.8), "height_px": 450}, "it has bars or blurred sides", id="bars"
        ),
    ],
)
def test_what_is_not_kept_in_any_case_may_look_otherwise(worse: dict[str, Any], fault: str) -> None:
    choice = chosen({"mean_colours": GREY.tobytes()}, {"mean_colours": LOGO.tobytes(), **worse})
    assert choice.named == "in/good"
    assert choice.reasons["in/bad"] == f"Not kept: {fault}."


LANDSCAPE = np.tile(np.arange(16, dtype=np.uint8)[:, None] * 10, (1, 16))
"""A bright sky above dark ground, the same on both sides."""
HOUSE = LANDSCAPE.copy()
HOUSE[9:12, 2:6] += 30
"""Something stands on the left of it."""
NOISE = np.random.default_rng(0).integers(0, 3, (16, 16)).astype(np.uint8)


@pytest.mark.parametrize(
    ("picture", "reference", "expected"),
    [
        pytest.param(MIRROR[:, ::-1], MIRROR, True, id="mirrored"),
        pytest.param(MIRROR, MIRROR, False, id="the same"),
        pytest.param(HOUSE[:, ::-1], HOUSE, True, id="mirrored, mostly symmetric"),
        pytest.param(HOUSE[:, ::-1] + NOISE, HOUSE, True, id="mirrored and compressed"),
        pytest.param(HOUSE + NOISE, HOUSE, False, id="compressed"),
        pytest.param(LANDSCAPE + NOISE[:, ::-1], LANDSCAPE + NOISE, False, id="symmetric"),
        pytest.param(np.full((16, 16), 7, np.uint8), MIRROR, False, id="one colour"),
        pytest.param(None, MIRROR, False, id="not known"),
    ],
)
def test_a_mirrored_picture_is_told_by_what_is_not_symmetric(
    picture: NDArray[np.uint8] | None, reference: NDArray[np.uint8], expected: bool
) -> None:
    assert is_mirrored(picture, reference) is expected


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "backwards"])
def test_an_enlarged_one_does_not_win_beside_a_worn_one(step: int) -> None:
    """It has more detail than a copy that compression has worn, not than the original."""
    worn = copy("a worn", detail=(0.3, 0.3, 0.2, 0.2), video_bytes=10**5)
    copies = [worn, copy("original"), copy("enlarged", **HD, detail=SOFT)]
    choice = choose(copies[::step], DuplicatesSettings())
    assert choice.named is None
    assert "may have been enlarged" in choice.reasons["original"]


SMALL_SOFT = {"width_px": 320, "height_px": 180, "detail": (0.862, 0.832, 0.586, 0.392)}
"""A real clip at half size."""
WORN = {"detail": (0.742, 0.509, 0.423, 0.468), "video_bytes": 61_108}
"""The same clip at full size and CRF 30."""
# what another copy at full size is like; what is said of it beside the two above, "" for a doubt
BESIDE_WORN: dict[str, tuple[dict[str, Any], str]] = {
    "original": ({"detail": (0.704, 0.483, 0.384, 0.38)}, ""),
    "detail not known": ({"detail": ()}, ""),
    "enlarged": ({"detail": (0.6, 0.45, 0.15, 0.14)}, "it shows less detail"),
    "older codec": (
        {"detail": (0.518, 0.384, 0.271, 0.242), "codec": "mpeg2video"},
        "it shows less detail",
    ),
    "bars": (
        {"detail": (0.8, 0.49, 0.4, 0.4), "height_px": 480, "content": (1.0, 0.75)},
        "it has bars or blurred sides",
    ),
}


@pytest.mark.parametrize("case", BESIDE_WORN)
def test_what_compression_adds_does_not_let_the_better_copy_be_moved(case: str) -> None:
    """Its noise passes for detail that the original lacks."""
    facts, fault = BESIDE_WORN[case]
    copies = [copy("worn", **WORN), copy("other", **facts), copy("small", **SMALL_SOFT)]
    for first in range(3):
        choice = choose(copies[first:] + copies[:first], DuplicatesSettings())
        assert choice.named == ("worn" if fault else None)
        assert (fault or "other has more pixels, but shows no more") in choice.reasons["other"]


PREFERRED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], str | None]] = {
    "a folder": ({}, {**HD, "video_bytes": 9 * 10**6}, ["in/good/"], "in/good"),
    "a folder of another name": (HD, {}, ["in/b/"], "in/good"),
    "the smallest": ({}, {"num_bytes": 1_000_001, **HD}, ["smallest"], "in/good"),
    "pictures before pixels": ({"fps": 50.0}, HD, ["fps"], "in/good"),
    "never a shorter one": ({}, {"length_s": 8.8}, ["in/bad/"], "in/good"),
    "never a damaged one": ({}, {"damage": "hole"}, ["in/bad/", "smallest"], "in/good"),
}


@pytest.mark.parametrize("case", PREFERRED)
def test_a_user_may_prefer_folders_and_properties(case: str) -> None:
    good, bad, prefer, named = PREFERRED[case]
    assert chosen(good, bad, prefer=prefer).named == named


def test_of_equal_files_the_preferred_one_stays() -> None:
    """Then the first path; equal files need not be measured, and share their reason."""
    copies = [copy("a/x", sha256="1", measured=False), copy("b/x", sha256="1", measured=False)]
    assert choose(copies, DuplicatesSettings()).named == "a/x"
    assert choose(copies, DuplicatesSettings(prefer=("b/",))).named == "b/x"
    assert choose(copies, DuplicatesSettings(protect=("b/",))).named == "b/x"
    better = [*(copy(name, sha256="1") for name in ("a/x", "b/x")), copy("c/x", **HD)]
    choice = choose(better, DuplicatesSettings())
    assert choice.named == "c/x"
    assert choice.reasons["a/x"] == choice.reasons["b/x"]
    assert choice.reasons["a/x"] == "Not kept: it has fewer pixels, 640 x 360."


@pytest.mark.parametrize(
    ("key", "value"), [("prefer", "archive"), ("prefer", "/"), ("protect", "smallest")]
)
def test_what_is_no_folder_is_refused(key: str, value: str) -> None:
    with pytest.raises(ValidationError, match="folder"):
        DuplicatesSettings(**{key: (value,)})


def test_a_copy_of_another_length_keeps_nobody_from_choosing_among_the_others() -> None:
    """At twice the speed, for instance: it stays."""
    copies = [copy("a"), copy("b", **HD), copy("c"), copy("fast", length_s=5.0)]
    choice = choose(copies, DuplicatesSettings())
    assert choice.named == "b"
    assert set(choice.staying) == {"fast"}
    assert choice.reasons["fast"] == (
        "It stays: its length, 5.0 s, differs too much from the 10.0 s of most others."
    )


def test_a_longer_copy_with_text_is_not_kept_in_place_of_a_shorter_one() -> None:
    """Nor the other way round."""
    choice = choose([copy("a"), copy("b", length_s=12.0, spoilt=EDITED)], DuplicatesSettings())
    assert choice.named is None
    assert "b is longer, but is noisy or shows more" in choice.reasons["a"]
