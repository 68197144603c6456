"""Groups around medoids: no chains, the same whatever the order, and the better file is kept."""

from __future__ import annotations

import hashlib
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import DuplicatePair, group_copies, kind_of


def metadata(name: str, **changes: object) -> VideoMetadata:
    values = {"num_bytes": 10**6, "duration_s": 10.0, "width_px": 640, "height_px": 360, "codec": "h264"} | changes
    return VideoMetadata(path=Path(name), sha256=hashlib.sha256(name.encode()).hexdigest(), **values)  # type: ignore[arg-type]


def pair(
    first: str, second: str, *, similarity: float = 0.9, covered: tuple[float, float] = (1.0, 1.0)
) -> DuplicatePair:
    first, second = sorted((first, second))
    return DuplicatePair(
        first=first,
        second=second,
        first_sha256=metadata(first).sha256,
        second_sha256=metadata(second).sha256,
        similarity=similarity,
        probability=0.95,
        first_covered=covered[0],
        second_covered=covered[1],
        first_start_s=0,
        second_start_s=0,
    )


@pytest.mark.parametrize(
    ("covered", "kind"),
    [
        ((1, 0.8), "copy"),
        ((1, 0.2), "contained"),
        ((0.2, 0.9), "contained"),
        ((0.3, 0.1), "overlap"),
        ((0, 0), "same_incident"),
    ],
)
def test_kinds_follow_coverage(covered: tuple[float, float], kind: str) -> None:
    assert kind_of(*covered) == kind


def test_a_chain_is_broken() -> None:
    """Neighbours alike, ends not: nobody stands in a group with a video that it was not found to be a copy of."""
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
    known = {name: metadata(name) for name in "abc"}
    assert len(group_copies(pairs, known)) == 3
    members = group_copies(pairs, known, apart=lambda one, other: {one, other} == {"b", "c"})
    assert sorted(member.video_id for member in members) == ["a", "c"]


@pytest.mark.parametrize(
    ("better", "said"),
    [
        ({"width_px": 1920, "height_px": 1080}, "more pixels (1920 x 1080 against 640 x 360)"),
        ({"num_bytes": 3 * 10**6}, "a higher bit rate (2400 against 800 kbit/s"),
        ({"num_bytes": 900_000, "codec": "hevc"}, "hevc against h264"),
    ],
)
def test_the_better_file_is_kept(better: dict[str, object], said: str) -> None:
    """Whatever the names and whoever is the medoid; the others say what the kept one has more."""
    known = {"a": metadata("a"), "b": metadata("b"), "z": metadata("z", **better)}
    members = group_copies([pair(one, other) for one, other in combinations("abz", 2)], known)
    assert [(member.video_id, member.keep) for member in members] == [("z", True), ("a", False), ("b", False)]
    assert all(said in member.reason for member in members)


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda one: one[0] < one[1])), st.randoms())
def test_groups_do_not_depend_on_order(edges: set[tuple[int, int]], random: object) -> None:
    """Any graph: each video once, one keeper and one medoid a group, stable names, the same for shuffled pairs."""
    pairs = [pair(f"v{one}", f"v{other}") for one, other in sorted(edges)]
    known = {f"v{number}": metadata(f"v{number}") for number in range(10)}
    members = group_copies(pairs, known)
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(map(str, group_copies(shuffled, known))) == sorted(map(str, members))
    ids = [member.video_id for member in members]
    assert len(set(ids)) == len(ids)
    for group in {member.group for member in members}:
        inside = [member for member in members if member.group == group]
        assert len(inside) >= 2
        assert [sum(member.keep for member in inside), sum(member.medoid for member in inside)] == [1, 1]
        assert group == min(member.metadata.sha256 for member in inside)[:12]
