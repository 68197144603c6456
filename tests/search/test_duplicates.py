"""Groups around medoids: no chains, the same whatever the order, and the better file is kept. Plans
of what to do about copies: a script that is run, on files with names that a shell could trip over.
"""

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import (
    FIRST,
    LATER,
    DuplicatePair,
    GroupMember,
    group_copies,
    same_course,
    write_plan,
)


def metadata(name: str, **changes: object) -> VideoMetadata:
    values = {
        "num_bytes": 10**6,
        "duration_s": 10.0,
        "width_px": 640,
        "height_px": 360,
        "codec": "h264",
    } | changes
    return VideoMetadata(
        path=Path(name), sha256=hashlib.sha256(name.encode()).hexdigest(), **values
    )  # type: ignore[arg-type]


def pair(
    first: str,
    second: str,
    *,
    similarity: float = 0.9,
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
        probability=similarity,
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
    known = {name: metadata(name) for name in "abc"}
    assert len(group_copies(pairs, known)) == 3
    members = group_copies(pairs, known, apart=lambda one, other: {one, other} == {"b", "c"})
    assert sorted(member.video_id for member in members) == ["a", "c"]


@pytest.mark.parametrize(
    ("better", "facts"),
    [
        ({"width_px": 1920, "height_px": 1080}, "1920 x 1080 pixels, 800 kbit/s"),
        ({"num_bytes": 3 * 10**6}, "640 x 360 pixels, 2400 kbit/s"),
    ],
)
def test_the_better_file_is_kept(better: dict[str, object], facts: str) -> None:
    """Whatever the names and whoever is the medoid; black bars are no pixels; each says why in a
    sentence."""
    known = {"a": metadata("a"), "b": metadata("b"), "z": metadata("z", **better)}
    members = group_copies([pair(one, other) for one, other in combinations("abz", 2)], known)
    why_not = LATER.format("640 x 360 pixels, 800 kbit/s", facts)
    wanted = [("z", FIRST.format(facts)), ("a", why_not), ("b", why_not)]
    assert [(member.video_id, member.reason) for member in members] == wanted
    assert [member.keep for member in members] == [True, False, False]


def test_black_bars_and_added_footage_do_not_win() -> None:
    """A letterboxed copy in a larger frame loses against the original, and a copy that holds
    another one to those that do not."""
    boxed = metadata("boxed", height_px=480, num_bytes=9 * 10**6, content=(1.0, 0.74))
    kept, other = group_copies(
        [pair("boxed", "plain")], {"boxed": boxed, "plain": metadata("plain")}
    )
    assert (kept.video_id, kept.reason) == ("plain", FIRST.format("640 x 360 pixels, 800 kbit/s"))
    assert other.reason.endswith(
        "640 x 355 pixels, 7200 kbit/s against 640 x 360 pixels, 800 kbit/s."
    )
    known = {
        "a": metadata("a"),
        "b": metadata("b"),
        "mix": metadata("mix", width_px=1280, height_px=720),
    }
    pairs = [pair("a", "b"), pair("a", "mix"), pair("b", "mix", covered=(1.0, 0.7))]
    members = {member.video_id: member for member in group_copies(pairs, known)}
    assert members["a"].keep
    assert (
        members["mix"].reason
        == "It shows more than the copies have in common: another one is contained in it."
    )


def test_equal_files_are_told_apart_by_their_path() -> None:
    known = {name: metadata(name) for name in ("x", "y")}
    assert [(one.video_id, one.keep) for one in group_copies([pair("x", "y")], known)] == [
        ("x", True),
        ("y", False),
    ]


@given(
    st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda one: one[0] < one[1])),
    st.randoms(),
)
def test_groups_do_not_depend_on_order(edges: set[tuple[int, int]], random: object) -> None:
    """Any graph: each video once, one keeper and one medoid a group, stable names, the same for
    shuffled pairs."""
    pairs = [
        pair(f"v{one}", f"v{two}", similarity=0.5 + one * two % 5 / 8) for one, two in sorted(edges)
    ]
    known = {
        f"v{number}": metadata(f"v{number}", noise=5.0 * (number == 4)) for number in range(10)
    }
    members = group_copies(pairs, known)
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(map(str, group_copies(shuffled, known))) == sorted(map(str, members))
    ids = [member.video_id for member in members]
    assert len(set(ids)) == len(ids)
    for group in {member.group for member in members}:
        inside = [member for member in members if member.group == group]
        assert len(inside) >= 2
        assert [sum(member.keep for member in inside), sum(member.medoid for member in inside)] == [
            1,
            1,
        ]
        assert group == min(member.metadata.sha256 for member in inside)[:12]
    of, free = (
        {one.video_id: one for one in members},
        {name for one in pairs for name in (one.first, one.second)},
    )
    while free:  # what the choice of the next medoid is by definition
        inner = [one for one in pairs if {one.first, one.second} <= free]
        like = {
            name: [one.similarity for one in inner if name in (one.first, one.second)]
            for name in free
        }
        name = min(
            free,
            key=lambda one: (known[one].noise, -len(like[one]), -sum(like[one]), known[one].sha256),
        )
        assert name not in of or of[name].medoid
        free -= {
            name,
            *(one.video_id for one in members if name in of and one.group == of[name].group),
        }


def test_a_picture_in_a_picture_ties_no_groups_together() -> None:
    """It is a copy of both sides, most of all; it is no medoid, not kept, and joins the one that it
    is more like."""
    sides = [["a1", "a2", "a3"], ["b1", "b2", "b3"]]
    known = {name: metadata(name) for side in sides for name in side} | {
        "mix": metadata("mix", num_bytes=10**7)
    }
    pairs = [pair(*two, similarity=0.95) for side in sides for two in combinations(side, 2)]
    for side, like in zip(sides, (0.8, 0.6), strict=True):
        pairs += [pair("mix", name, similarity=like, asymmetry=-0.02) for name in side]
    for edited in (known, known | {"mix": metadata("mix", num_bytes=10**7, noise=5.0)}):
        members = group_copies(pairs, edited)
        groups = {
            one.group: {m.video_id for m in members if m.group == one.group} for one in members
        }
        assert sorted(map(sorted, groups.values())) == [
            ["a1", "a2", "a3", "mix"],
            ["b1", "b2", "b3"],
        ]
        (mix,) = [one for one in members if one.video_id == "mix"]
        assert (mix.medoid, mix.keep) == (False, False)
    even = [replace(one, asymmetry=0.0) for one in pairs]  # nothing gives it away but its links
    groups = [member.group for member in group_copies(even, known) if member.video_id[0] != "m"]
    assert len(set(groups)) == 2


@given(st.integers(0, 2**32 - 1), st.integers(8, 40), st.floats(0.4, 1.0))
def test_copies_have_the_course_of_their_original(seed: int, count: int, kept: float) -> None:
    """Frames that change, seen through any edit, are like the original where that is like itself;
    another take, as alike at all times, is not; few frames must be nearly the same."""
    rng = np.random.default_rng(seed)
    frames = np.cumsum(rng.normal(size=(count, 64)), axis=0)
    frames /= np.linalg.norm(frames, axis=1, keepdims=True)
    own = frames @ frames.T
    assert same_course(kept * own, own)
    assert not same_course(0.7 + rng.normal(size=own.shape) / 50, own)
    assert not same_course(0.8 * own[:3, :3], own[:3, :3])


NAMES = [
    "a $(touch own).mp4",
    "b'; touch own #.mp4",
    "-rf *.mp4",
    "new\nline `touch own`.mp4",
    "\udcff.mp4",
]


def member(group: str, path: Path, *, keep: bool = False) -> GroupMember:
    data = path.read_bytes()
    file = VideoMetadata(path=path, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))
    return GroupMember(
        group=group,
        video_id=f"in/{path.stem!a}",
        medoid=keep,
        keep=keep,
        reason="",
        probability=1,
        metadata=file,
    )


@pytest.fixture
def members(tmp_path: Path) -> list[GroupMember]:
    """One to keep, one of the same bytes, two others; and a pair in which none is kept."""
    folder = tmp_path / "videos of $HOME"
    folder.mkdir()
    for name, text in zip(NAMES, ["kept", "kept", "other", "more", "unsure"], strict=True):
        (folder / name).write_text(text)
    first, *others = (folder / name for name in NAMES)
    return [
        member("g", first, keep=True),
        *(member("g", one) for one in others[:3]),
        member("h", others[3]),
    ]


def test_the_script_acts_only_when_told_and_only_on_what_it_knows(
    members: list[GroupMember], tmp_path: Path
) -> None:
    kept, same, other, more, unsure = (
        file.metadata.path for file in members if file.metadata.path is not None
    )
    script, aside = tmp_path / "plan.sh", tmp_path / "aside"
    write_plan(script, members)

    def run(*options: str) -> subprocess.CompletedProcess[bytes]:
        known = {**os.environ, "ASIDE": str(aside)}
        return subprocess.run(
            ["bash", script, *options], cwd=tmp_path, env=known, capture_output=True
        )

    dry = run()
    assert (dry.returncode, dry.stdout.count(b"would:"), dry.stderr) == (0, 6, b"")
    assert not aside.exists()
    assert not same.samefile(kept)
    more.write_text("changed")
    done = run("--act")
    assert done.returncode == 1
    assert done.stderr.count(b"changed since") == 1
    assert same.samefile(kept)
    assert not other.exists()
    assert [one.read_text() for one in aside.iterdir()] == ["other"]
    assert [one.read_text() for one in (kept, more, unsure)] == ["kept", "changed", "unsure"]
    assert not list(tmp_path.rglob("own"))
    assert run("--act").stderr.count(b"left alone") == 2  # what was moved, and what was changed


def test_tables_say_what_could_be_done(members: list[GroupMember], tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", members)
    rows = json.loads((tmp_path / "plan.json").read_text())
    assert [row["action"] for row in rows] == ["keep", "link", "move", "move", "look"]
    assert {row["keep_sha256"] for row in rows[:4]} == {members[0].metadata.sha256}
    write_plan(tmp_path / "plan.csv", members)
    assert len((tmp_path / "plan.csv").read_text().split(",look,")) == 2
