"""Every file that is opened by name goes through `hapvr.files`, which refuses what is no regular
file: reading a pipe may never end."""

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hapvr.care.verify import verify_root
from hapvr.errors import HapvrError
from hapvr.files import open_regular, read_bytes
from hapvr.registry.client import mlflow_client, open_client, require_store
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.project import REGISTRY, Project
from tests.conftest import CHECKOUT
from tests.steps.data_projects import folder_settings, open_project

OPENS = {
    "Image.open",
    "ZipFile",
    "av.open",
    "connect",
    "copyfile",
    "h5py.File",
    "lance.dataset",
    "load_file",
    "memory_map",
    "np.load",
    "open",
    "open_input_file",
    "read_bytes",
    "read_text",
    "safe_open",
    "torch.load",
}
"""Names of calls that open a file, with what they are called on where others have them, too."""

NO_FILES = {"OpenBundle", "Project", "Searcher", "current"}
"""What has a method `open` that opens something else."""

CHECKS = {"check_file", "open_regular", "require_regular"}
"""A function that calls one of these checks what it opens."""

ALLOWED = {
    "benchmark/report.py: _published: table.read_bytes": "a file of this package",
    "cli.py: main: os.open": "the null device",
    "demo/clips_benchmark.py: _link_or_copy: shutil.copyfile": "refuses pipes",
    "model/archive.py: _read_content: load_file": "`read_archive` checks it first",
    "model/archive.py: _read_content: np.load": "so it does of this",
    "model/archive.py: _read_content: torch.load": "and of this",
    "model/archive.py: _require_sound_zip: zipfile.ZipFile": "and of this",
    "networks/packaged.py: packaged_tensors: Path(str(importlib.metadata.distribution(package)"
    ".locate_file(name))).read_bytes": "a file of an installed package",
    "registry/stored_versions.py: stored_version: sqlite3.connect": "`follow_move` checks it first",
    "registry/travel.py: export_model: shutil.copyfile": "refuses pipes",
    "scorer/bundle_writer.py: complete_bundle: (folder / SCORER_FILE).read_text": "just written",
    "scorer/bundle.py: _load_backbone: load_file": "`load_bundle` compared its digest",
    "scorer/bundle.py: load_in_torch: (folder / WHITENING_FILE).read_bytes": "so it did of this",
    "search/plan.py: _script: SCRIPT.read_text": "a file of this package",
    "search/lance_table.py: open_table: lance.dataset": "the digests of its files were compared",
    "video/decode.py: _open_webp: Image.open": "`open_video` checks it first",
    "video/stills.py: read_picture: Image.open": "its callers check it",
    "video/confinement.py: _close_other_files: os.open": "a place that is not read",
    "video/download.py: _fetched_once: Path(saved).open": "written just before, to be flushed",
    "video/moving_pictures.py: is_moving_picture: path.open": "it asks for a file first",
    "video/packets.py: _is_whole_flv: path.open": "`open_video` checked it first",
    "video/packets.py: _cut_mp4_bytes: path.open": "`open_video` checked it first",
    "video/packets.py: declared_bytes_of: path.open": "`open_video` checked it first",
    "video/packets.py: open_container: av.open": "its callers check it",
    "video/sandbox.py: _bytes_read: open": "what the kernel says of a process of ours",
    "video/sandbox.py: _keep_pipes: os.open": "the null device",
    "workers.py: _mute: os.open": "the null device",
    "serving/pairs.py: _plan: place.read_bytes": "just written",
}
"""Where an open without a check is meant, and why."""


def opens(path: Path) -> Iterator[str]:
    """`file: function: call` of every call that opens a file by name to read it, unchecked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    place = path.relative_to(CHECKOUT / "hapvr").as_posix()
    for function in functions:
        nested = [one for one in ast.walk(function) if one in functions and one is not function]
        inner = {child for one in nested for child in ast.walk(one)}
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
        names = {ast.unparse(one.func) for one in calls}
        if not CHECKS.isdisjoint(names):
            continue
        for call in calls:
            if call not in inner and is_open(call):
                yield f"{place}: {function.name}: {ast.unparse(call.func)}"


def is_open(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    receiver, _, method = name.rpartition(".")
    if name not in OPENS and method not in {one for one in OPENS if "." not in one}:
        return False
    texts = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant)]
    writes = any(text in {"w", "wb", "x", "xb", "a"} for text in texts)
    in_memory = "BytesIO" in ast.unparse(call)
    is_ours = method in {"read_bytes", "read_text"} and not receiver
    is_root = receiver.rpartition(".")[2] in {"root", "_root", "copies", "self"}
    return not (writes or in_memory or is_ours or is_root or receiver in NO_FILES)


def test_every_open_is_checked() -> None:
    unchecked_opens = {
        one
        for path in sorted((CHECKOUT / "hapvr").rglob("*.py"))
        if path.name != "files.py"
        for one in opens(path)
    }
    assert unchecked_opens - ALLOWED.keys() == set()
    assert ALLOWED.keys() - unchecked_opens == set()


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("read", [open_regular, read_bytes])
@pytest.mark.parametrize("name", ["pipe", "link", "/dev/zero", "", "a\0b", "missing"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    """A pipe nobody writes to, a device without an end, a folder, a name that no file has."""
    (tmp_path / "link").symlink_to(pipe(tmp_path / "pipe"))
    refused = "not a regular file|no file can have this name|No such file"
    with pytest.raises(OSError, match=refused):
        read(tmp_path / name)


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"long")
    with pytest.raises(OSError, match="at most 3 are read"):
        read_bytes(tmp_path / "long", max_bytes=3)


@pytest.fixture
def piped_registry(tmp_path: Path) -> Project:
    """A project with a pipe in the place of its registry."""
    project = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    pipe(project.root.local_path(REGISTRY))
    return project


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "ask", [require_store, mlflow_client, open_client], ids=lambda ask: ask.__name__
)
def test_a_pipe_in_the_place_of_the_registry_is_named(
    piped_registry: Project, ask: Callable[[str], object]
) -> None:
    with pytest.raises(HapvrError, match=r"mlflow\.db"):
        ask(piped_registry.tracking_uri)


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_registry_is_damage(piped_registry: Project) -> None:
    (check,) = verify_root(piped_registry.root)
    assert check.kind == "registry"
    assert check.state == "damaged"


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_outbox_is_named(tmp_path: Path) -> None:
    project = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    pipe(project.root.local_path(OUTBOX_PLACE))
    with pytest.raises(HapvrError, match="is not a regular file"):
        AlertOutbox(project.root).counts()
