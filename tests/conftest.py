"""Real video files and a small project that all tests share; everything is made here, in temporary
folders."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import settings

from hapvr.data.filesystem import LOCKS_FOLDER
from hapvr.seeding import numpy_rng
from hapvr.steps.project import Project
from tests.made_data import make_data

if TYPE_CHECKING:
    from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# torch.compile would start processes that import torch once more.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# No deadline: a busy machine is not a fault of the code.
settings.register_profile("hapvr", deadline=None, max_examples=30)
settings.load_profile("hapvr")

CHECKOUT = Path(__file__).resolve().parent.parent
GOLDEN = CHECKOUT / "tests" / "golden"

MakeOnce = Callable[[str, Callable[[Path], object]], Path]


LONGEST_FIRST = (
    # They mostly wait for other processes,
    "orchestration/test_week.py",
    "orchestration/test_daemon.py",
    # and these compute meanwhile,
    "train/test_demo_pairs.py",
    "steps/test_data_kills.py",
    "care/test_repair.py",
    "steps/test_families.py",
    "care/test_forget.py",
    # until these wait.
    "orchestration/test_chain.py",
    "orchestration/test_ray.py",
    "orchestration/test_year.py",
    "steps/test_watch_lists.py",
    "registry/test_travel.py",
    "care/test_verify_models.py",
    "care/test_verify.py",
    # The files above make the small project meanwhile.
    "serving/test_kept.py",
    "steps/test_searcher.py",
    "video/test_needed.py",
    "orchestration/test_search.py",
    "commands/test_stages.py",
    "commands/test_read_only.py",
    "registry/test_runs.py",
    "test_many_copies.py",
    "test_copies_kept.py",
    "scorer/test_slim_install.py",
    "serving/test_process_ends.py",
    "serving/test_search_processes.py",
    "scorer/test_onnx.py",
    "steps/test_seeds.py",
    "registry/test_documents.py",
    "steps/test_data_stages.py",
    "steps/test_searched_queries.py",
    "steps/test_duplicates.py",
    "registry/test_versions.py",
    "steps/test_gate.py",
    "steps/test_data_download.py",
    "fuzz/test_files.py",
    "train/test_batches.py",
)
"""The files that take longest. A file is run by one of the test processes, so a long one that began
last would run alone at the end; and if all that wait began first, the cores would be idle for
minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of `LONGEST_FIRST` before all others, which keep their order."""
    places = {CHECKOUT / "tests" / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def run_python(*words: object, **options: Any) -> str:
    """What Python prints that is called with these words, and finds the checkout. It must end
    well."""
    environment = options.pop("env", os.environ) | {"PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def golden_similarities(name: str) -> pl.DataFrame:
    """A table of tests/golden; one of all pairs is stored with a row per reference and a column per
    query."""
    stored = pq.read_table(GOLDEN / f"{name}.parquet")
    if "rank" not in stored.column_names:
        return pl.DataFrame(stored)
    queries = json.loads(stored.schema.metadata[b"query_ids"])
    ranks = pl.DataFrame(stored).with_columns(query_id=pl.lit(queries)).explode("rank", "query_id")
    return ranks.select("query_id", "reference_id", similarity=pl.col("rank").cast(pl.Float32))


def write_clip(
    path: Path, *, seed: int, seconds: float = 6.0, fps: int = 8, size: tuple[int, int] = (160, 96)
) -> Path:
    """A real H.264 file: coloured blocks that drift over a seeded background, so that clips differ
    from each other."""
    rng = numpy_rng(seed, "clip")
    width, height = size
    small = rng.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8)
    background = np.kron(small, np.ones((16, 16, 1), np.uint8))
    blocks = [
        (rng.integers(0, 255, 3), rng.uniform(0, 1, 2), rng.uniform(-0.15, 0.15, 2))
        for _ in range(4)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264",
            rate=fps,
            options={"crf": "28", "preset": "veryfast", "x264-params": "cpu-independent=1"},
        )
        stream.width = width
        stream.height = height
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for number in range(max(1, round(seconds * fps))):
            frame = background.copy()
            for color, start, speed in blocks:
                x, y = ((start + speed * number / fps) % 1 * (width - 24, height - 24)).astype(int)
                frame[y : y + 24, x : x + 24] = color

            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))

        container.mux(stream.encode())

    return path


def small_settings(videos: Path, data_root: Path) -> dict[str, Any]:
    """A configuration of the whole chain with timm's smallest ResNet and ViT, of seeded random
    weights, at 128 px."""
    random = {"source": "random", "seed": 1}
    train = {"steps": 8, "batch_videos": 4, "data_workers": 0, "validate_every_steps": 4}
    return {
        "name": "small",
        "data_root": str(data_root),
        "shard_videos": 8,
        "device": "cpu",
        "sources": [
            {
                "kind": "own_videos",
                "name": "own",
                "path": str(videos),
                "validation_rate": 0.2,
                "test_rate": 0.3,
            }
        ],
        "sampling": {"short_side_px": 146, "timeout_s": 60, "workers": 1},
        "backbone": {"architecture": "test_resnet.r160_in1k", "weights": random, "crop_px": 128},
        "teacher": {"architecture": "test_vit.r160_in1k", "weights": random},
        "whitening": {"dims": 32, "max_regions": 400},
        "views": {"num_frames": 4, "num_weak": 1, "num_strong": 2},
        "train": train | {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 2}},
        # 8 steps may end above or below the untrained baseline; here it stays champion
        "evaluation": {
            "benchmarks": ["own-test"],
            "validation": "own-validation",
            "gate": {"enabled": False},
        },
        "tracking": {"onnx": False},  # it takes longer than all the rest of a registration
    }


def write_settings(path: Path, settings: dict[str, Any]) -> Path:
    """Settings as a YAML file."""
    import yaml

    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="session", autouse=True)
def nobodys_collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Verbs that are told of no collection take the user's own: here there is none, so that no test
    reads or changes what belongs to whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data home")))
        yield


NOT_INSTALLED = ("dbruntime", "pyspark")
"""MLflow's client looks for these with each request to a server. It looks for IPython too, but
Ray takes any entry of `sys.modules` by that name for an IPython that runs."""


@pytest.fixture(scope="session", autouse=True)
def known_to_be_missing() -> Iterator[None]:
    """Python knows that modules are not installed, without a search through all places: a request
    to MLflow's server takes a third less."""
    with pytest.MonkeyPatch.context() as patch:
        for name in NOT_INSTALLED:
            if find_spec(name) is None:
                patch.setitem(sys.modules, name, None)

        yield


@contextmanager
def short_edits() -> Iterator[None]:
    """What answers are worth is fitted on searches for fewer and shorter edits, where a test asks
    for a fitted model and not for how good it is: networks compute far less then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hapvr.steps.search_calibration.EDITED_FRAMES", 2)
        for module in ("search_calibration", "calibration"):
            patch.setattr(f"hapvr.steps.{module}.EDITED_VIDEOS", 6)
        yield


@pytest.fixture(scope="session")
def golden() -> "dict[str, Tensor]":
    """Arrays of similarity_and_losses.npz; tests/golden/README.md says where they come from and
    what they mean."""
    import torch  # xdist's controller imports this module, and runs no test

    with np.load(GOLDEN / "similarity_and_losses.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[MakeOnce]:
    """Gives a folder of this name that one of the test processes has filled; the others wait for
    it, and only read it: a test that writes there would change what others read at that moment, so
    the run fails. HAPVR_TESTS_MADE: where these folders are, so that several runs of pytest over
    the same code share them."""
    base = tmp_path_factory.getbasetemp()
    shared = Path(
        os.environ.get("HAPVR_TESTS_MADE") or (base if worker_id == "master" else base.parent)
    )
    filled: dict[Path, dict[str, int]] = {}

    def made(name: str, fill: Callable[[Path], object]) -> Path:
        folder = shared / name
        end = shared / f"{name}.made"
        with FileLock(shared / f"{name}.lock"):
            if not end.exists():
                folder.mkdir()
                fill(folder)
                end.touch()

        if folder not in filled:
            filled[folder] = times_of_files(folder)
        return folder

    yield made

    changes = {
        folder.name: sorted(dict(before.items() ^ times_of_files(folder).items()))
        for folder, before in filled.items()
    }
    written = {name: files for name, files in changes.items() if files}
    assert not written, f"tests have written into folders that all share: {written}"


def times_of_files(folder: Path) -> dict[str, int]:
    """When each file below a folder was written last, but for locks, which readers take too."""
    files = [path for path in folder.rglob("*") if LOCKS_FOLDER not in path.parts]
    return {
        path.relative_to(folder).as_posix(): path.lstat().st_mtime_ns
        for path in files
        if not path.is_dir()
    }


@pytest.fixture(scope="session")
def clips_folder(make_once: MakeOnce) -> Path:
    """Twelve good clips, one of a single frame, and five bad files, with names as people have
    them."""
    return make_once("my videos", write_clips)


def write_clips(folder: Path) -> None:
    """What `clips_folder` holds."""
    for number in range(12):
        write_clip(folder / f"clip {number:02d}.mp4", seed=number)
    write_clip(folder / "видео 'кавычки' «и».mp4", seed=100, seconds=0.125)
    (folder / "text.mp4").write_text("this is no video")
    (folder / "empty.mp4").write_bytes(b"")
    whole = (folder / "clip 00.mp4").read_bytes()
    (folder / "cut before its index.mp4").write_bytes(whole[: len(whole) // 2])
    write_sound(folder / "sound only.mp4")
    (folder / "README.md").write_text("not a video, and not said to be one")


BAD_FILES = ("text.mp4", "empty.mp4", "cut before its index.mp4", "sound only.mp4")


def write_sound(path: Path) -> Path:
    """A second of AAC in mp4, without pictures."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        samples = np.sin(np.arange(44100, dtype=np.float32) / 20)[None]
        for start in range(0, 44100 - 1024, 1024):
            frame = av.AudioFrame.from_ndarray(
                samples[:, start : start + 1024], format="fltp", layout="mono"
            )
            frame.sample_rate = 44100
            container.mux(stream.encode(frame))

        container.mux(stream.encode())

    return path


@pytest.fixture(scope="session")
def small_project(
    clips_folder: Path, make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """A project whose data is made up to pseudo labels, by the library's own stages, and an empty
    registry; a copy for each test process."""
    from tests.registry.empty_store import new_store

    shared_folder = make_once(
        "small project", lambda folder: make_data(open_small_project(clips_folder, folder))
    )
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(shared_folder, folder, dirs_exist_ok=True)
    new_store(folder / "data" / "mlflow")
    return open_small_project(clips_folder, folder)


@pytest.fixture(scope="session")
def searchable(make_once: MakeOnce) -> Path:
    """The folder of a project with an index, made by
    `tests.steps.search_projects.searchable_project`; only to be read."""
    from tests.steps.search_projects import searchable_project

    return make_once("searchable project", searchable_project)


@pytest.fixture(scope="session")
def scenes(make_once: MakeOnce) -> Path:
    """a: pictures 0-5; b: others; copy: 3 s of a within others; two: two parts of a, swapped; bad:
    no video."""
    from tests.scorer.bundles import write_scenes

    def write(folder: Path) -> None:
        write_scenes(folder / "a.mp4", [0, 1, 2, 3, 4, 5])
        write_scenes(folder / "b.mp4", [20, 21, 22, 23])
        write_scenes(folder / "copy.mp4", [30, 31, 32, 33, 2, 3, 4, 34, 35])
        write_scenes(folder / "two.mp4", [40, 3, 4, 5, 41, 42, 0, 1, 43])
        (folder / "bad.mp4").write_text("this is no video")

    return make_once("scenes", write)


@pytest.fixture(scope="session")
def onnx_bundle(make_once: MakeOnce) -> Path:
    """A bundle with ONNX files; only to be read."""
    from tests.scorer.bundles import make_bundle

    return make_once("onnx bundle", lambda folder: make_bundle(folder, onnx=True)) / "bundle"


@pytest.fixture(scope="session")
def pooled_project(
    small_project: Project,
    clips_folder: Path,
    make_once: MakeOnce,
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    """`small_project`, whose features and views were made again with pooled vectors; a copy for
    each test process."""
    source = Path(small_project.config.data_root).parent
    shared_folder = make_once(
        "pooled project", lambda folder: make_pooled(clips_folder, source, folder)
    )
    folder = tmp_path_factory.mktemp("pooled")
    shutil.copytree(shared_folder, folder, dirs_exist_ok=True)
    return open_pooled_project(clips_folder, folder)


def open_pooled_project(clips: Path, folder: Path, **changes: Any) -> Project:
    """The project of `small_settings` with pooled vectors, and with other settings of `train`."""
    settings = small_settings(clips, folder / "data") | {"features": {"pooled": True}}
    settings["train"] |= changes
    return Project.open(write_settings(folder / "pooled.yaml", settings), folder=folder)


def make_pooled(clips: Path, source: Path, folder: Path) -> None:
    """Copy a project and make its features and views again."""
    from hapvr.steps.features import make_features
    from hapvr.steps.views import make_training_views

    shutil.copytree(source, folder, dirs_exist_ok=True)
    project = open_pooled_project(clips, folder)
    for key in project.root.list_folders("features"):
        make_features(project, key)
    for key in project.root.list_folders("training_views"):
        make_training_views(project, key)


def open_small_project(clips: Path, folder: Path) -> Project:
    """The project of `small_settings` in a folder."""
    config = write_settings(folder / "config.yaml", small_settings(clips, folder / "data"))
    return Project.open(config, folder=folder)
