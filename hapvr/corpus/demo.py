"""The generated demo corpus: labelled mp4 files of invented incidents, split by incident."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from hapvr.benchmark.definitions.clips import write_clips
from hapvr.corpus.camera import film, make_camera
from hapvr.corpus.edits import EDITS, NORMAL_CRF, broadcast, edit_video
from hapvr.corpus.encode import write_mp4
from hapvr.corpus.plan import SPAN_S, Clip, Footage, Split, label_table, plan_split, split_incidents, video_table
from hapvr.corpus.scene import Scene, make_scene
from hapvr.corpus.textures import Pixels
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.seeding import numpy_rng

GENERATOR_VERSION = 1
"""Raised whenever the same arguments would give other pictures; corpora of another version are made again."""
FPS = 12.0
_STATE_FILE = "corpus.json"


@dataclass(frozen=True)
class DemoCorpus:
    """Folders of the three splits; the files are in `videos/` of each, validation and test are `clips` benchmarks."""

    train: Path
    validation: Path
    test: Path
    digest: str


def make_demo_corpus(
    folder: Path,
    *,
    name: str,
    num_incidents: int = 26,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = no_progress,
) -> DemoCorpus:
    """Make the corpus below `folder`, or finish it, or leave it alone where it is complete.

    name: the splits are the folders NAME-train, NAME-validation and NAME-test. num_incidents: at least 3, of which
    about 14/26 train, 4/26 validate and 8/26 test. Equal arguments and library versions give equal bytes, whatever
    the number of worker processes. progress: counts files. Raises DataError where a folder holds something else,
    ArgumentError for a wrong number.
    """
    provenance = Provenance(
        "demo_corpus",
        {"generator_version": GENERATOR_VERSION, "name": name, "num_incidents": num_incidents, "seed": seed},
        environment=environment(),
    )
    plans = {
        split: plan_split(split, incidents=incidents, seed=seed)
        for split, incidents in split_incidents(num_incidents).items()
    }
    folders: dict[Split, Path] = {split: folder / f"{name}-{split}" for split in plans}
    for split_folder in folders.values():
        _prepare(split_folder, fingerprint=provenance.fingerprint)
    tasks = [
        (folders[split] / "videos", list(clips), seed)
        for split, plan in plans.items()
        for _, clips in groupby(plan, key=lambda clip: clip.footage.incident)
    ]
    _render_all(tasks, workers=workers, progress=progress)
    for split, plan in plans.items():
        _finish(folders[split], split=split, plan=plan, provenance=provenance)
    return DemoCorpus(folders["train"], folders["validation"], folders["test"], provenance.fingerprint)


def _prepare(folder: Path, *, fingerprint: str) -> None:
    """Make the folder, keeping what an interrupted run of equal settings left and removing what other settings made."""
    state = folder / _STATE_FILE
    if state.exists():
        if json.loads(state.read_text(encoding="utf-8")).get("fingerprint") == fingerprint:
            return
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise DataError(f"demo corpus: {folder} is not empty and was not made by it; name another folder or source")
    (folder / "videos").mkdir(parents=True)
    _write_state(folder, {"fingerprint": fingerprint, "complete": False})


def _finish(folder: Path, *, split: Split, plan: list[Clip], provenance: Provenance) -> None:
    state = {"fingerprint": provenance.fingerprint, "complete": True}
    if json.loads((folder / _STATE_FILE).read_text(encoding="utf-8")) == state:
        return
    if split != "train":
        write_clips(
            folder,
            name=folder.name,
            videos=video_table(plan, name=folder.name),
            labels=label_table(plan, name=folder.name),
            provenance=json.loads(provenance.to_json()),
        )
    _write_state(folder, state)


def _write_state(folder: Path, state: dict[str, object]) -> None:
    part = folder / f"{_STATE_FILE}.part"
    part.write_text(json.dumps(state) + "\n", encoding="utf-8")
    part.replace(folder / _STATE_FILE)


def _render_all(tasks: list[tuple[Path, list[Clip], int]], *, workers: int, progress: Progress) -> None:
    total = sum(len(clips) for _, clips, _ in tasks)
    waiting = [task for task in tasks if _missing(task[0], task[1])]
    done = total - sum(len(clips) for _, clips, _ in waiting)
    progress(done, total)
    if workers <= 1 or len(waiting) <= 1:
        for videos, clips, seed in waiting:
            done += render_incident(videos, clips, seed)
            progress(done, total)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(render_incident, *task) for task in waiting]):
            done += future.result()
            progress(done, total)


def _missing(videos: Path, clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if not (videos / clip.file).is_file()]


def render_incident(videos: Path, clips: list[Clip], seed: int) -> int:
    """Film, edit and encode those clips of one incident that are not in `videos` yet; returns the number of clips."""
    footage = clips[0].footage
    scene = _scene(footage.incident, dressing=footage.dressing, seed=seed)
    donor = _donor(footage, seed=seed)
    for take, group in groupby(_missing(videos, clips), key=lambda clip: clip.footage):
        frames = _take(scene, take, seed=seed)
        for clip in group:
            edited, crf = _edited(clip, frames, donor=donor, seed=seed)
            write_mp4(videos / clip.file, edited, fps=FPS, crf=crf)
    return len(clips)


def _scene(incident: str, *, dressing: int, seed: int) -> Scene:
    return make_scene(seed=seed, incident=incident, dressing=dressing, duration_s=3 * SPAN_S)


def _take(scene: Scene, footage: Footage, *, seed: int) -> Pixels:
    camera = make_camera(seed=seed, incident=footage.incident, camera=footage.camera)
    name = f"{footage.incident}/{footage.camera}/{footage.start_s:.3f}"
    return film(scene, camera, start_s=footage.start_s, duration_s=footage.duration_s, fps=FPS, name=name)


def _donor(footage: Footage, *, seed: int) -> Pixels:
    """Six seconds of something that no query shows, for the edits that combine two videos."""
    incident = f"{footage.incident}-donor"
    other = Footage(incident, footage.dressing + 1, camera=0, start_s=0.0, duration_s=6.0)
    return _take(_scene(incident, dressing=other.dressing, seed=seed), other, seed=seed)


def _edited(clip: Clip, frames: Pixels, *, donor: Pixels, seed: int) -> tuple[Pixels, int]:
    """The clip's frames and x264 quality."""
    rng = numpy_rng(seed, "edit", clip.file)
    edited, crf = frames, NORMAL_CRF
    if clip.edit != "none":
        edited = edit_video(clip.edit, frames, donor=donor, fps=FPS, rng=rng)
        crf = EDITS[clip.edit].crf
    if clip.channel is not None:
        edited = broadcast(edited, channel=clip.channel, fps=FPS, rng=rng)
    return np.ascontiguousarray(edited), crf
