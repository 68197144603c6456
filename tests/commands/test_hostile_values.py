"""Every verb of the command line with values that people and attackers give: one sentence, exit
code 0, 1 or 2.

The verbs and their options are read from the command itself, so a new verb is covered without a
line here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.core import TyperArgument

from hapvr import cli
from hapvr.commands.terminal import _unforeseen, as_command, fail, printing_json, say, show
from hapvr.reporting import say_warning
from hapvr.serving.server import Server
from tests.commands.calls import run_until_it_answers
from tests.commands.conftest import COMMAND, invoke
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.scorer.bundles import make_bundle

HOSTILE = (
    "",
    " ",
    "\n",
    "a\x01b",
    "a\0b",
    "'",
    '"; --',
    "²",
    "-1",
    "999999999999999999999",
    "NaN",
    "../../x",
    "foo://x",
    "http://127.0.0.1:9/x",
    "models:/a'b@c",
    "models:/hapvr/²",
    "x" * 5000,
    "[",
    "{}",
    "2024-02-31",
    "None",
    "\udcff.mp4",
)
BOMB = ", ".join(f"&a{number} [*a{number - 1}, *a{number - 1}]" for number in range(1, 60))
BOMB = f"[&a0 [x, x], {BOMB}]"
DEVICES = ("/dev/zero", "/dev/null")
SETTINGS = (
    "k=[",
    "k=: :",
    "k=!!tag",
    "k=!!python/object:os.system",
    "k=\x01",
    "k=2024-01-01",
    "k=2024-99-99",
    "=",
    "k",
    "sources.².path=x",
    "sources.99999999999999999999.path=x",
    "sources.0.path.x=1",
    "a..b=1",
    "k=" + "[" * 3000,
    "data_root=foo://x",
    "data_root=http://127.0.0.1/x",
    'data_root="a\\0b"',
    "data_root=[1]",
    "shard_videos=NaN",
    "backbone.crop_px=64",
    f"k={BOMB}",
    "k=&a [*a]",
    "k=!!set {a}",
    "k=!!binary aGFsbG8=",
    "sampling.fps=.nan",
    "device=cuda",
)
# Files of `damaged_files`, for the parameters of these names.
FILES = {
    "config": (
        "deep.yaml",
        "null.yaml",
        "bytes.yaml",
        "list.yaml",
        "videos",
        "bomb.yaml",
        "circle.yaml",
        *DEVICES,
    ),
    "tracking_uri": (
        "sqlite:///empty.db",
        "sqlite:///cut.db",
        "sqlite:///absent/mlflow.db",
        "http://127.0.0.1:9",
    ),
    "model": (
        "bundles/empty",
        "bundles/list",
        "bundles/no-weights",
        "bundles/cut-weights",
        *DEVICES,
    ),
    "features": ("foo://x", "http://127.0.0.1/x", "cut.db", *DEVICES),
    "similarities": ("cut.db", "bundles", "cut.parquet", *DEVICES),
    "file": ("cut.parquet", *DEVICES),
    "one": DEVICES,
    "query": DEVICES,
    "queries": ("zero.txt", *DEVICES),
}
OWN_VALUES = {"--set": SETTINGS, "--run": ("abc\n", *HOSTILE)}


def verbs() -> dict[tuple[str, ...], Any]:
    """Every verb by its words, e.g. ("models", "list")."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "commands"):
            yield words, command
            return

        for name, inner in command.commands.items():
            yield from walk(inner, (*words, name))

    return dict(walk(COMMAND, ()))


def benign(param: Any, folder: Path) -> str:
    """A value that is well formed and names nothing that is there."""
    return {
        "config": str(folder / "config.yaml"),
        "benchmark": "svd",
        "version": "1",
        "copies": "1",
    }.get(param.name, str(folder / "absent" / param.name))


def calls(words: tuple[str, ...], command: Any, folder: Path) -> Iterator[list[str]]:
    """Calls of one verb in which one value is hostile and the other wanted ones are benign."""
    params = [
        param
        for param in command.params
        if not getattr(param, "is_flag", False) and param.name != "help"
    ]
    wanted = [param for param in params if param.required]
    for hostile in params:
        option = "" if isinstance(hostile, TyperArgument) else hostile.opts[0]
        for value in (*OWN_VALUES.get(option, HOSTILE), *FILES.get(hostile.name, ())):
            call = list(words)
            for param in wanted:
                if param is not hostile:
                    given = benign(param, folder)
                    call += [given] if isinstance(param, TyperArgument) else [param.opts[0], given]

            if hostile.name == "config":
                call += [option, value]
            else:
                call += [value] if not option else [option, *[value] * hostile.nargs]

            yield call


def write_damaged_similarities(path: Path) -> None:
    """Similarities whose footer is whole and whose values are not."""
    rows = {
        "query_id": ["q"] * 9,
        "reference_id": [f"{n}" for n in range(9)],
        "similarity": [n / 9 for n in range(9)],
    }
    pl.DataFrame(rows).write_parquet(path)
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def damaged_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations, databases and bundles that people break."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "deep.yaml").write_text("a: " + "[" * 3000)
    (folder / "null.yaml").write_text("name: \x00")
    (folder / "bytes.yaml").write_bytes(bytes(range(256)))
    (folder / "list.yaml").write_text("- 1")
    (folder / "bomb.yaml").write_text(f"sources: {BOMB}")
    (folder / "circle.yaml").write_text("sources: &a [*a]")
    write_damaged_similarities(folder / "cut.parquet")
    (folder / "empty.db").write_bytes(b"")
    (folder / "cut.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)))
    bundles = folder / "bundles"
    shutil.copytree(make_bundle(tmp_path_factory.mktemp("whole")), bundles / "no-weights")
    shutil.copytree(bundles / "no-weights", bundles / "cut-weights")
    (bundles / "no-weights" / "backbone.safetensors").unlink()
    weights = bundles / "cut-weights" / "whitening.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    for name, text in (("empty", None), ("list", "[]")):
        (bundles / name).mkdir()
        if text is not None:
            (bundles / name / "scorer.json").write_text(text)

    return folder


@pytest.fixture
def folder(damaged_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a configuration of no videos and damaged files, and an empty cache."""
    shutil.copytree(
        damaged_files, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bundles")
    )
    (tmp_path / "bundles").symlink_to(damaged_files / "bundles")
    (tmp_path / "videos").mkdir()
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    write_settings(tmp_path / "config.yaml", small_settings(tmp_path / "videos", tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def served_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hapvr serve` ends as soon as it answers, should a value that it can do without start it."""
    monkeypatch.setattr(Server, "run", run_until_it_answers)


@pytest.mark.slow
@pytest.mark.usefixtures("served_once")
@pytest.mark.parametrize("words", sorted(verbs()), ids=" ".join)
def test_hostile_values_end_with_a_sentence(words: tuple[str, ...], folder: Path) -> None:
    """Exit code 0, 1 or 2, an explanation, no traceback, no error that nobody foresaw; JSON where
    it was asked for."""
    command = verbs()[words]
    as_json = any("--json" in param.opts for param in command.params)
    problems = []
    for call in calls(words, command, folder):
        result = invoke(*call, *(["--json"] if as_json else []))
        output = result.stdout + result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            problems.append(f"{call!r:.300}: raised {result.exception!r:.300}")
        elif result.exit_code not in (0, 1, 2):
            problems.append(f"{call!r:.300}: exit code {result.exit_code}")
        elif "Traceback" in output or "unexpected " in output:
            problems.append(f"{call!r:.300}: {output.strip()[-400:]}")
        elif result.exit_code and not result.stderr.strip():
            problems.append(f"{call!r:.300}: no explanation")
        elif as_json and "error: " in result.stderr:
            answer = json.loads(result.stdout)
            if not isinstance(answer, dict) or not {"error", "exit_code"} <= answer.keys():
                problems.append(f"{call!r:.300}: no JSON object: {result.stdout[:200]}")

    assert not problems, "\n".join([f"{len(problems)} calls", *problems[:20]])


def test_names_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters, directions and what is not UTF-8 are printed escaped, which JSON reads
    back; other text is kept."""
    name = "\x1b]0;x\a\x9b2J\u202efdp.exe\r\udcff é\u3000日本.mp4"
    say(name + "\tb\nc")
    assert (
        capsys.readouterr().out
        == r"\u001b]0;x\u0007\u009b2J\u202efdp.exe\r\udcff é" + "\u3000日本.mp4\tb\nc\n"
    )
    as_command(lambda: show({"name": name}))(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": name}


def test_a_call_that_cannot_be_parsed_gives_json_too(tmp_path: Path) -> None:
    """The console script prints an object to standard output where --json stands in the call, also
    where its caller closed standard error."""
    command = [
        sys.executable,
        "-c",
        "from hapvr.cli import main; main()",
        "models",
        "list",
        "--nmae",
        "x",
        "--json",
    ]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout) == {
        "error": "this call is not understood; standard error says why",
        "exit_code": 2,
    }
    assert "--nmae" in done.stderr
    again = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *command], capture_output=True, env=environment, check=False
    )
    assert again.returncode == 2
    assert json.loads(again.stdout) == json.loads(done.stdout)
    full = ["sh", "-c", '"$@" --help > /dev/full', "sh", *command[:3]]
    again = subprocess.run(full, capture_output=True, text=True, env=environment, check=False)
    assert again.returncode == 1
    assert again.stderr.partition(" (")[0] == "error: standard output cannot be written"


def test_an_error_that_nobody_foresaw_has_no_logins() -> None:
    message = _unforeseen(
        RuntimeError(
            "API request to https://alice:hunter2@host/api failed, and //bob@other/x; me@home"
        )
    )
    assert "API request to https://host/api failed, and //other/x; me@home" in message


def test_a_name_never_becomes_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of results, errors and warnings; texts that have lines of their own keep them."""
    printing_json.set(False)
    name = "a\nkeep  b.mp4"
    show({}, text=[f"video    {name}", "next"])
    show({"name": name})
    show({}, text="a card\nof two lines")
    with pytest.raises(typer.Exit):
        fail(f"video: {name} has 0 bytes", 1)
    say_warning(UserWarning(f"{name} is left out"), UserWarning, cli.__file__)
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "video    a\\nkeep  b.mp4",
        "next",
        "name: a\\nkeep  b.mp4",
        "a card",
        "of two lines",
    ]
    assert told.err.splitlines() == [
        "error: video: a\\nkeep  b.mp4 has 0 bytes",
        "warning: a\\nkeep  b.mp4 is left out",
    ]
