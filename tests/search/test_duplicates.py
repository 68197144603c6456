"""Groups around medoids: no chains, the same whatever the order."""

import hashlib
from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.search.collection import VideoMetadata
from hapvr.search.copies import DIFFERENT, MIXED, SHORT, UNSURE, Doubt
from hapvr.search.duplicates import (
    DuplicatePair,
    GroupMember,
    group_copies,
)
from hapvr.search.keep import not_named
from hapvr.settings import DuplicatesSettings
from hapvr.video.facts import FileFacts
from hapvr.video.looks import FILM_PX, MOMENT_PX


def metadata(name: str, **changes: object) -> VideoMetadata:
    values = {
        "num_bytes": 10**6,
        "duration_s": 10.0,
        "width_px": 640,
        "height_px": 360,
        "codec": "h264",
    } | changes
    values.setdefault("sha256", hashlib.sha256(name.encode()).hexdigest())
    return VideoMetadata(path=Path(name), **values)  # type: ignore[arg-type]


def pair(
    first: str,
    second: str,
    *,
    similarity: float = 0.9,
    probability: float = 0.98,
    covered: tuple[float, float] = (1.0, 1.0),
    asymmetry: float = 0.0,
) -> DuplicatePair:
    asymmetry = asymmetry if first < second else -asymmetry
    first, second = sorted((first, second))
    return DuplicatePair(
        first=first,
        second=second,
        first_sha256=metadata(first).sha256,
        second_sha256=metadata(second).sha256,
        similarity=similarity,
        probability=probability,
        first_covered=covered[0],
        second_covered=covered[1],
        first_start_s=0,
        second_start_s=0,
        frame_similarity=similarity,
        asymmetry=asymmetry,
    )


KINDS = {(1, 0.8): "copy", (1, 0.2): "contained", (0.2, 0.9): "contained", (0.3, 0.1): "overlap"}
KINDS[0, 0] = "same_incident"


@pytest.mark.parametrize(("covered", "kind"), KINDS.items())
def test_kinds_follow_coverage(covered: tuple[float, float], kind: str) -> None:
    assert pair("a", "b", covered=covered).kind == kind


def test_a_chain_is_broken() -> None:
    """Neighbours alike, ends not: nobody stands in a group with a video that it was not found to be
    a copy of."""
    chain = [f"v{number}" for number in range(7)]
    pairs = [pair(one, other) for one, other in pairwise(chain)]
    members = group_copies(pairs, {name: metadata(name) for name in chain})
    linked = {frozenset((one.first, one.second)) for one in pairs}
    medoids = {member.group: member.video_id for member in members if member.medoid}
    for member in members:
        assert member.medoid or frozenset((member.video_id, medoids[member.group])) in linked
    assert len(medoids) >= 2


def test_what_people_keep_apart_is_in_no_group_together() -> None:
    """Both are copies of the medoid; the more similar one stays."""
    pairs = [pair("a", "b", similarity=0.9), pair("a", "c", similarity=0.95)]
    videos = {name: metadata(name) for name in "abc"}
    assert len(group_copies(pairs, videos)) == 3
    members = group_copies(pairs, videos, apart=lambda one, other: {one, other} == {"b", "c"})
    assert sorted(member.video_id for member in members) == ["a", "c"]


def facts(known: dict[str, VideoMetadata], **video_bytes: int) -> dict[str, FileFacts]:
    """What files hold, by SHA-256: 10 s of 1 MB, or of as many bytes as are named."""
    return {
        file.sha256: FileFacts(
            video_bytes=video_bytes.get(name, 10**6),
            length_s=10.0,
            declared_s=10.0,
            fps=25.0,
            sound=False,
            damage="",
        )
        for name, file in known.items()
    }


def test_the_better_file_is_kept_whoever_is_the_medoid() -> None:
    """It comes first, and each member says why in a sentence."""
    videos = {name: metadata(name) for name in "abz"}
    pairs = [pair(one, other) for one, other in combinations("abz", 2)]
    members = group_copies(pairs, videos, facts=facts(videos, z=3 * 10**6))
    assert [(member.video_id, member.keep) for member in members] == [
        ("z", True),
        ("a", False),
        ("b", False),
    ]
    assert members[0].reason == "Kept: it has the most picture data (3 MB of h264)."
    assert {member.reason for member in members[1:]} == {
        "Not kept: it has less picture data, 1 MB of h264."
    }


def test_a_protected_file_is_kept_besides_the_better_one() -> None:
    videos = {name: metadata(name) for name in ("archive/a", "in/b", "in/c")}
    pairs = [pair(one, other) for one, other in combinations(videos, 2)]
    settings = DuplicatesSettings(protect=("archive/",))
    sizes = {"in/c": 3 * 10**6}
    members = group_copies(pairs, videos, facts=facts(videos, **sizes), settings=settings)
    assert [(member.video_id, member.keep) for member in members] == [
        ("in/c", True),
        ("archive/a", True),
        ("in/b", False),
    ]
    assert members[1].reason.startswith("Kept: it is protected. Not kept: it has less")


@pytest.mark.parametrize(
    ("unlike", "doubt"),
    [
        pytest.param({"probability": 0.93}, UNSURE, id="unsure"),
        pytest.param({"similarity": 0.84}, DIFFERENT, id="other pictures"),
    ],
)
def test_what_may_be_no_copy_or_a_better_one_stays_beside_the_one_to_keep(
    unlike: dict[str, float], doubt: Doubt
) -> None:
    """It keeps nobody from choosing among the others; of two alone none is named."""
    videos = {name: metadata(name) for name in "abz"}
    measured = facts(videos, b=2 * 10**6)
    pairs = [pair("a", "b"), pair("a", "z", **unlike)]
    members = {member.video_id: member for member in group_copies(pairs, videos, facts=measured)}
    assert [name for name, member in members.items() if member.keep] == ["b"]
    assert [name for name, member in members.items() if member.stays] == ["z"]
    assert members["z"].reason == f"It stays: {doubt.of_copy}."

    alone = group_copies([pairs[1]], videos, facts=measured)
    assert {(member.keep, member.reason) for member in alone} == {
        (False, f"No copy is named to keep: {doubt.of_group}.")
    }


def test_a_very_poor_copy_that_looks_like_the_other_is_compared_with_it() -> None:
    """Its frames are far from the other's for the network (0.67), which alone proves nothing."""
    stored = {
        "mean_colours": np.full((FILM_PX, FILM_PX, 3), 100, np.uint8).tobytes(),
        "moments": np.full((10, MOMENT_PX, MOMENT_PX), 100, np.uint8).tobytes(),
    }
    videos = {name: metadata(name, **stored) for name in ("good", "poor")}
    measured = facts(videos, good=2 * 10**6)
    members = group_copies([pair("good", "poor", similarity=0.67)], videos, facts=measured)
    assert [member.video_id for member in members if member.keep] == ["good"]


@pytest.mark.parametrize(
    ("length_s", "changes", "kept"),
    [
        pytest.param(3.9, {}, [], id="short"),
        pytest.param(4.0, {}, ["a"], id="long enough"),
        pytest.param(3.9, {"mark": "match"}, ["a"], id="marked"),
        pytest.param(3.9, {"second_sha256": metadata("a").sha256}, ["a"], id="same file"),
    ],
)
def test_what_may_be_another_part_of_the_same_scene_is_not_moved(
    length_s: float, changes: dict[str, str], kept: list[str]
) -> None:
    """Two pictures a second apart are no evidence: burst shots, pieces of a recording."""
    videos = {name: metadata(name) for name in "az"}
    if "second_sha256" in changes:
        videos["z"] = metadata("z", sha256=changes["second_sha256"])
    measured = {
        sha256: replace(file, length_s=length_s)
        for sha256, file in facts(videos, a=2 * 10**6).items()
    }
    members = group_copies([replace(pair("a", "z"), **changes)], videos, facts=measured)
    assert [member.video_id for member in members if member.keep] == kept
    assert kept or {member.reason for member in members} == {not_named(SHORT.of_group)}


def test_a_copy_that_is_known_to_show_more_is_not_kept() -> None:
    """By a network that tells which of two videos lacks what the other shows."""
    videos = {name: metadata(name) for name in "az"}
    pairs = [pair("a", "z", similarity=0.8, asymmetry=0.02)]
    members = group_copies(pairs, videos, facts=facts(videos))
    assert {member.video_id: member.keep for member in members} == {"a": True, "z": False}


def test_of_equal_files_a_protected_one_is_never_replaced_by_a_link() -> None:
    """Also where no copy is named to keep; the others may be links to it."""
    equal = hashlib.sha256(b"same").hexdigest()
    videos = {
        "a/x": metadata("a/x", sha256=equal),
        "b/y": metadata("b/y"),
        "masters/x": metadata("masters/x", sha256=equal),
    }
    pairs = [pair(*names) for names in combinations(videos, 2)]
    settings = DuplicatesSettings(protect=("masters/",))
    members = group_copies(pairs, videos, facts=facts(videos), settings=settings)
    assert not any(member.keep for member in members)
    assert {member.video_id: member.same_file_as for member in members} == {
        "a/x": "masters/x",
        "b/y": "",
        "masters/x": "",
    }


def test_a_copy_that_holds_another_one_is_not_kept() -> None:
    videos = {
        "a": metadata("a"),
        "b": metadata("b"),
        "mix": metadata("mix", width_px=1280, height_px=720),
    }
    pairs = [pair("a", "b"), pair("a", "mix"), pair("b", "mix", covered=(1.0, 0.7))]
    measured = facts(videos, a=3 * 10**6)
    members = {one.video_id: one for one in group_copies(pairs, videos, facts=measured)}
    assert members["a"].keep
    assert members["mix"].reason == f"Not kept: {MIXED}."


EDGES = st.sets(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda edge: edge[0] < edge[1])
)
"""Any graph of ten videos."""
TEN = {f"v{number}": metadata(f"v{number}", noise=5.0 * (number == 4)) for number in range(10)}


def pairs_of(edges: set[tuple[int, int]]) -> list[DuplicatePair]:
    return [
        pair(f"v{first}", f"v{second}", similarity=0.5 + first * second % 5 / 8)
        for first, second in sorted(edges)
    ]


@given(EDGES, st.randoms())
def test_groups_do_not_depend_on_order(edges: set[tuple[int, int]], random: Random) -> None:
    pairs = pairs_of(edges)
    members = group_copies(pairs, TEN)
    random.shuffle(pairs)
    assert sorted(map(str, group_copies(pairs, TEN))) == sorted(map(str, members))


@given(EDGES)
def test_a_video_is_in_one_group(edges: set[tuple[int, int]]) -> None:
    ids = [member.video_id for member in group_copies(pairs_of(edges), TEN)]
    assert len(set(ids)) == len(ids)


@given(EDGES)
def test_a_group_has_two_members_one_medoid_and_a_stable_name(edges: set[tuple[int, int]]) -> None:
    """And nothing is kept where nothing was measured."""
    groups: dict[str, list[GroupMember]] = defaultdict(list)
    for member in group_copies(pairs_of(edges), TEN):
        groups[member.group].append(member)
    for name, inside in groups.items():
        assert len(inside) >= 2
        assert sum(member.medoid for member in inside) == 1
        assert sum(member.keep for member in inside) == 0
        assert name == min(member.metadata.sha256 for member in inside)[:12]


@given(EDGES)
def test_the_next_medoid_is_the_best_of_those_that_are_free(edges: set[tuple[int, int]]) -> None:
    """By its definition: the least noise, then the most copies, then the most alike."""
    pairs = pairs_of(edges)
    group_of = {member.video_id: member for member in group_copies(pairs, TEN)}
    free = {name for each in pairs for name in (each.first, each.second)}
    while free:
        inner = [each for each in pairs if {each.first, each.second} <= free]
        like = {
            name: [each.similarity for each in inner if name in (each.first, each.second)]
            for name in free
        }
        best = min(
            free,
            key=lambda name: (
                TEN[name].noise,
                -len(like[name]),
                -sum(like[name]),
                TEN[name].sha256,
            ),
        )
        free.discard(best)
        if best in group_of:
            assert group_of[best].medoid
            group = group_of[best].group
            free -= {member.video_id for member in group_of.values() if member.group == group}


SIDES = (("a1", "a2", "a3"), ("b1", "b2", "b3"))
MIX = metadata("mix", num_bytes=10**7)
"""A picture in a picture of both sides, more like the first."""
OF_BOTH = {name: metadata(name) for side in SIDES for name in side}
TIES = [
    *(pair(*two, similarity=0.95) for side in SIDES for two in combinations(side, 2)),
    *(pair("mix", name, similarity=0.8, asymmetry=-0.02) for name in SIDES[0]),
    *(pair("mix", name, similarity=0.6, asymmetry=-0.02) for name in SIDES[1]),
]


@pytest.mark.parametrize("mix", [MIX, replace(MIX, noise=5.0)], ids=["as the others", "noisy"])
def test_a_picture_in_a_picture_joins_the_side_that_it_is_more_like(mix: VideoMetadata) -> None:
    """It is a copy of both, most of all, and is neither medoid nor kept."""
    members = group_copies(TIES, OF_BOTH | {"mix": mix})
    groups: dict[str, set[str]] = defaultdict(set)
    for member in members:
        groups[member.group].add(member.video_id)
    assert sorted(map(sorted, groups.values())) == [["a1", "a2", "a3", "mix"], ["b1", "b2", "b3"]]
    (mixed,) = [member for member in members if member.video_id == "mix"]
    assert not mixed.medoid
    assert not mixed.keep


def test_a_picture_in_a_picture_that_only_its_links_give_away_ties_no_groups_together() -> None:
    even = [replace(tie, asymmetry=0.0) for tie in TIES]
    members = group_copies(even, OF_BOTH | {"mix": MIX})
    assert len({member.group for member in members if member.video_id != "mix"}) == 2
