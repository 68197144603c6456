"""What the documents promise exists: messages, verbs, targets, sensors, files."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from hapvr.cli import app
from tests.conftest import CHECKOUT, run_python

PLACEHOLDER = re.compile(r"\.\.\.|\b(?:NAME|PATH|KEY|STAGE|DIR|N)\b")
# A tag of runs, and a file of the reader's own.
NOT_COMMITTED = ("hapvr/one_at_a_time", "configs/mine.yaml")
DOCUMENTS = sorted([*(CHECKOUT / "docs").glob("*.md"), *CHECKOUT.glob("*.md")])


def sources() -> str:
    """All code, with string literals that continue on the next line joined."""
    parts = [
        path.read_text(encoding="utf-8")
        for folder in ("hapvr", "assets", "pipelines")
        for path in (CHECKOUT / folder).rglob("*.py")
    ]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(parts))


def test_messages_in_troubleshooting_are_said_by_the_code() -> None:
    """The fixed words of every quoted message are in the sources."""
    text = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    code = sources()
    messages = re.findall(r"^\| `([a-z -]+: [^`]*)`", text, flags=re.MULTILINE)
    assert len(messages) > 8
    for message in messages:
        fixed = max((part.strip(" :`") for part in PLACEHOLDER.split(message)), key=len)
        assert fixed in code, f"no code says {fixed!r} (from {message!r})"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_targets_exist(path: Path) -> None:
    """Relative links lead to files; `make X` is a target; `hapvr verb` is a verb."""
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / link).exists(), link
    targets = set(
        re.findall(
            r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    )
    for target in re.findall(r"(?:`|    )make ([a-z-]+)", text):
        assert target in targets, target


def test_operations_lists_every_sensor_and_schedule() -> None:
    """The table of what runs by itself is complete."""
    from pipelines.definitions import defs

    text = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    repository = defs.get_repository_def()
    for definition in (*repository.sensor_defs, *repository.schedule_defs):
        assert f"`{definition.name}`" in text


def test_the_committed_reference_is_current() -> None:
    """`make docs` writes it; this fails after a change of hapvr/config.py without that."""
    committed = (CHECKOUT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == run_python(CHECKOUT / ".ci" / "config_reference.py"), (
        "it is old; run `make docs`"
    )


def test_paths_in_the_documents_exist() -> None:
    """Files and folders of the checkout that README, ARCHITECTURE and the guides name are there."""
    folders = "assets|bench|configs|dagster_home|docs|hapvr|notebooks|pipelines|tests"
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
            if name not in NOT_COMMITTED:
                assert (CHECKOUT / name).exists(), f"{document.name}: {name}"


def test_every_promise_of_security_names_tests_that_exist() -> None:
    """A border without a test promises nothing."""
    text = (CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")
    code = "".join(
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("test_*.py")
    )
    borders = re.findall(r"^\| .* \| (`test_.*) \|$", text, flags=re.MULTILINE)
    assert len(borders) > 10
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code, name


def test_the_picture_of_the_assets_is_current() -> None:
    """ARCHITECTURE's graph has the jobs and dependencies of the definitions, and its table has
    every asset."""
    from pipelines.definitions import defs

    text = (CHECKOUT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    picture = next(
        block
        for block in re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
        if "video_manifest" in block
    )
    drawn = set()
    for chain in re.findall(r"^ *(\w+(?: --> \w+)+)$", picture, flags=re.MULTILINE):
        names = chain.split(" --> ")
        drawn |= set(pairwise(names))

    graph = defs.resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    real = {
        (parent.to_user_string(), key.to_user_string())
        for key in keys
        for parent in graph.get(key).parent_keys
    }
    assert drawn == real
    jobs = {job.name for job in defs.get_repository_def().get_all_jobs()} - {"__ASSET_JOB"}
    assert set(re.findall(r"subgraph (\w+)", picture)) == jobs
    assert {key.to_user_string() for key in keys} == set(
        re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    )


def test_the_documents_build_as_a_site(tmp_path: Path) -> None:
    """`make docs` has no warning, and each document is a page that the navigation leads to."""
    shutil.copy(CHECKOUT / "zensical.toml", tmp_path)
    shutil.copytree(CHECKOUT / "docs", tmp_path / "docs")
    build = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in (CHECKOUT / "docs").glob("*.md"):
        if page.stem != "index":
            assert (tmp_path / "site" / page.stem / "index.html").is_file()
            assert f'href="./{page.stem}/"' in home


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, but for code, tables, and lines that a link makes long."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.startswith("```")
        if (
            not fenced
            and not line.startswith(("```", "    ", "|"))
            and "](" not in line
            and "://" not in line
        ):
            yield number, line


def test_prose_wraps_at_120_columns() -> None:
    """A sentence can be read beside the code. The reference of the configuration is made from
    docstrings."""
    written = [path for path in DOCUMENTS if path.name != "configuration.md"]
    for path in [*written, *(CHECKOUT / "tests" / "golden").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert [f"{path.name}:{number}" for number, line in prose(text) if len(line) > 120] == []


def shell_commands(text: str) -> Iterator[list[str]]:
    """Words of each command in an indented block, without the variables that are set before it."""
    joined = re.sub(r"\\\n\s*", "", text)
    for line in re.findall(r"^    (\S.*)", joined, flags=re.MULTILINE):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # the first line of a command with quotes over several lines
            words = line.split()

        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words:
            yield words


def options_of(words: list[str]) -> set[str]:
    """All options of the verb that `hapvr` is called with. Raises KeyError if there is no such
    verb."""
    command = typer.main.get_command(app)
    while verbs := getattr(command, "commands", None):
        command = verbs[words.pop(0)]
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_documents_are_understood(path: Path) -> None:
    """Every `hapvr` call names a verb and options of it; `python -m` names a module here; scripts
    exist."""
    for words in shell_commands(path.read_text(encoding="utf-8")):
        program, *arguments = words
        options = {word.split("=")[0] for word in arguments if word.startswith("--")}
        if program.removeprefix(".venv/bin/") == "hapvr":
            assert options <= options_of(arguments), words
        elif program.endswith("python") and arguments[:1] == ["-m"] and arguments[1] != "pytest":
            file = CHECKOUT / f"{arguments[1].replace('.', '/')}.py"
            assert file.exists(), words
            code = file.read_text(encoding="utf-8")
            assert {option for option in options if f'"{option}"' not in code} == set(), words
        elif program in ("bash", "sh"):
            assert (CHECKOUT / arguments[0]).exists(), words
