"""Forgetting videos: every store removes what was made of them; a user's own files stay.

What is to be forgotten is written to manifest.FORGETTING until all of it is done, so the next call
finishes one that was killed. The stores forget in the order of the chain.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hapvr.care.forgetting import (
    DIGESTS,
    ForgottenVideo,
    Journal,
    forgetting_of,
    mentions,
    read_journal,
)
from hapvr.care.stores import STORES
from hapvr.data import frames, manifest, set_aside
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shards import Shard
from hapvr.errors import ArgumentError
from hapvr.steps.project import Project
from hapvr.steps.sources import CORPUS_FOLDER
from hapvr.steps.video_manifest import make_manifest
from hapvr.video.settings import PARTS
from hapvr.video.sources import is_remote, path_of_text


def plan_forgetting(
    project: Project, video_ids: Sequence[str], *, offline: str = ""
) -> list[ForgottenVideo]:
    """What is to be forgotten: these videos, those of the source `offline` whose files are gone,
    the copies of all of them that were generated for benchmarks, and what a killed call has left.

    Raises ArgumentError for an unknown id or source, or if there is nothing to forget, and as
    `Shard.read` does.
    """
    root = project.root
    listed = {row["video_id"]: row for row in manifest.manifest_table(root).to_pylist()}
    begun = {video.video_id: video for video in read_journal(root).videos}
    _require_known(video_ids, listed.keys() | begun.keys())

    wanted = _offline_videos(listed, offline)
    wanted |= dict.fromkeys(video_ids, True)
    rows = _inspected_rows(root)
    contents = {row["video_id"]: _contents(row) for row in rows}
    wanted = _generated_of(root, listed, wanted, contents, begun) | wanted

    going = wanted.keys() | begun.keys()
    staying = {row["sha256"] for row in rows if row["video_id"] not in going}
    videos = dict(begun)
    for video_id in wanted.keys() & listed.keys():
        videos[video_id] = ForgottenVideo(
            video_id,
            shard=listed[video_id]["shard"],
            uri=listed[video_id]["uri"],
            contents=sorted(contents.get(video_id, set()) - staying),
            kept_out=wanted[video_id],
        )

    if not videos:
        raise ArgumentError(
            "forget: there is nothing to forget; name videos, or a source whose files are gone"
        )

    return [videos[video_id] for video_id in sorted(videos)]


def _require_known(video_ids: Sequence[str], known: Collection[str]) -> None:
    for video_id in video_ids:
        if video_id not in known:
            raise ArgumentError(
                f"forget: {video_id!r:.200} is not a video of the manifest; expected an id such "
                "as SOURCE/NAME.mp4"
            )


def _offline_videos(listed: Mapping[str, Mapping[str, str]], source: str) -> dict[str, bool]:
    """The local videos of a source whose files are gone. They may be listed again."""
    names = {f"{source}{part}" for part in PARTS}
    offline = {}
    for video_id, row in listed.items():
        if row["source"] not in names or is_remote(row["uri"]):
            continue
        if not os.path.exists(path_of_text(row["uri"])):
            offline[video_id] = False

    return offline


def _inspected_rows(root: DataRoot) -> list[dict[str, Any]]:
    """What the steps `videos` and `frames` recorded of each video."""
    rows = []
    for key in manifest.shard_keys(root):
        shards = [Shard(root, stage, key) for stage in (VIDEOS_STAGE, frames.STAGE)]
        if any(root.exists(shard.index_name) for shard in shards):
            rows += shards[0].rows()

    return rows


def _contents(row: Mapping[str, Any]) -> set[str]:
    """SHA-256 of every content that the file of a video has had."""
    former = (row.get("former_sha256") or "").split()
    return {row["sha256"], *former} - {""}


def _generated_of(
    root: DataRoot,
    listed: Mapping[str, Mapping[str, str]],
    wanted: Collection[str],
    contents: Mapping[str, Collection[str]],
    begun: Mapping[str, ForgottenVideo],
) -> dict[str, bool]:
    """All videos of benchmarks that were generated from these. They may be listed again."""
    digests = set[str]()
    for video_id in wanted:
        digests.update(contents.get(video_id, ()))
    for video in begun.values():
        digests.update(video.contents)
    generated: dict[str, bool] = {}
    for name in root.list_folders(CORPUS_FOLDER):
        if mentions(root, name, digests):
            of_name = [video_id for video_id, row in listed.items() if row["source"] == name]
            generated |= dict.fromkeys(of_name, False)

    return generated


def forget(project: Project, videos: Sequence[ForgottenVideo]) -> None:
    """Remove everything that was made of the videos; may be repeated. Raises DataError where
    something cannot be reached."""
    root = project.root
    with root.care_lock():
        set_aside.put_back_unreplaced(root)
        forgetting = forgetting_of(_begin(root, videos))
        for store in STORES.values():
            store.forget(project, forgetting)
        root.delete(DIGESTS)
        root.delete(manifest.FORGETTING)

    if forgetting.generated or _has_generated(root, forgetting.videos):
        make_manifest(project)


def _has_generated(root: DataRoot, videos: Sequence[ForgottenVideo]) -> bool:
    """Whether some belong to benchmarks that are generated again, even if a killed call has removed
    those."""
    if root.local is None:
        return False
    folder = root.local / CORPUS_FOLDER
    local = [video for video in videos if not (video.kept_out or is_remote(video.uri))]
    return any(path_of_text(video.uri).is_relative_to(folder) for video in local)


def _begin(root: DataRoot, videos: Sequence[ForgottenVideo]) -> Journal:
    """Record what is to be forgotten, with whatever another call has begun since this was
    planned."""
    journal = read_journal(root)
    all_videos = {video.video_id: video for video in (*journal.videos, *videos)}
    journal.videos = list(all_videos.values())
    root.write_json(manifest.FORGETTING, [asdict(video) for video in journal.videos])
    names = set(manifest.forgotten_digests(root))
    for video in journal.videos:
        if video.kept_out:
            names |= {manifest.name_digest(video.video_id), manifest.name_digest(video.uri)}

    root.write_json(manifest.FORGOTTEN, {"names": sorted(names)})
    return journal
