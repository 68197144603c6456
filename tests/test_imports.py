"""The layers of the code, as its imports show them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hapvr.steps.project import Project
from tests.conftest import CHECKOUT, run_python


def imported_modules(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in it."""
    return {name for name, _ in imports(path)}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each module that a file imports, and the dotted name of what it takes of it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, f"{node.module}.{alias.name}") for alias in node.names)


def roots(folder: str) -> dict[Path, set[str]]:
    return {
        path.relative_to(CHECKOUT): {name.split(".")[0] for name in imported_modules(path)}
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
    }


@pytest.mark.parametrize(
    ("folder", "above"), [("hapvr", {"assets", "pipelines", "dagster"}), ("assets", {"pipelines"})]
)
def test_imports_run_one_way(folder: str, above: set[str]) -> None:
    """pipelines -> assets -> hapvr, never back; the library does not know Dagster."""
    assert {path: names & above for path, names in roots(folder).items() if names & above} == {}


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("mlflow", {Path("hapvr/registry")}),
        ("dagster_pipes", {Path("hapvr/trainer.py")}),
        ("lance", {Path("hapvr/search/index.py")}),
        ("fastapi", {Path("hapvr/serving")}),
        ("starlette", {Path("hapvr/serving")}),
        ("uvicorn", {Path("hapvr/serving")}),
        ("prometheus_client", {Path("hapvr/serving/metrics.py")}),
        ("openvino", {Path("hapvr/networks/extract.py")}),
    ],
)
def test_fragile_or_heavy_libraries_stay_behind_one_door(module: str, allowed: set[Path]) -> None:
    """MLflow is imported in registry alone, Lance and OpenVINO in one module each."""
    users = {path for path, names in roots("hapvr").items() if module in names}
    assert users
    assert {
        path for path in users if not any(path.is_relative_to(door) for door in allowed)
    } == set()


LAYERS = (
    {"settings"},
    {
        "config",
        "config_file",
        "errors",
        "files",
        "seeding",
        "provenance",
        "tables",
        "progress",
        "workers",
    },
    {"model", "augment", "video"},
    {"losses", "networks", "data"},
    {"train", "benchmark", "demo", "scorer", "search", "registry"},
    {"steps"},
    {"serving", "chain"},
    {"care", "collection"},
    {"commands", "trainer"},
    {"cli"},
)


def test_layers_of_the_library_run_one_way() -> None:
    """A module imports from its own layer and those below; every `settings.py` is of the lowest
    layer, in any folder."""
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = []
    for path in sorted((CHECKOUT / "hapvr").rglob("*.py")):
        relative = path.relative_to(CHECKOUT / "hapvr")
        own = "settings" if path.stem == "settings" else relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[0] != "hapvr" or len(parts) == 1:
                continue
            if level["settings" if parts[-1] == "settings" else parts[1]] > level[own]:
                wrong.append(f"{relative} imports {name}")
    assert wrong == []


def test_no_two_modules_of_networks_and_losses_import_each_other() -> None:
    """Nor do they in a longer circle, imports for types included."""
    found = {
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts): imported_modules(path)
        for folder in ("model", "losses", "augment")
        for path in (CHECKOUT / "hapvr" / folder).rglob("*.py")
    }
    while leaves := [name for name, imports in found.items() if not imports & found.keys()]:
        for name in leaves:
            del found[name]
    assert sorted(found) == []


def test_nothing_private_is_imported() -> None:
    """A module that begins with an underscore is its owner's affair: no such import, of another
    package or of the standard library, and none of the parts of multiprocessing that are not
    documented."""
    undocumented = "popen_\\w+|spawn|reduction|resource_\\w+|semaphore_tracker|util|forkserver"
    undocumented = re.compile(rf"multiprocessing\.({undocumented})")
    found = {
        (path.relative_to(CHECKOUT), name)
        for folder in ("hapvr", "assets", "pipelines")
        for path in (CHECKOUT / folder).rglob("*.py")
        for _, name in imports(path)
        if not name.startswith(("__future__", "hapvr.", "assets.", "pipelines."))
        if any(part.startswith("_") for part in name.split(".")) or undocumented.match(name)
    }
    assert found == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            "hapvr.steps.training, hapvr.steps.evaluation",
            {"timm", "torchvision", "lightning_fabric", "torch._dynamo"},
        ),
        (
            "hapvr.commands.scoring, hapvr.scorer.bundle",
            {"torch", "polars", "pyarrow", "mlflow", "openvino"},
        ),
        (
            "hapvr.steps.searcher, hapvr.steps.duplicates, hapvr.search.marks, "
            "hapvr.serving.server",
            {"torch", "mlflow", "timm", "yt_dlp", "openvino", "matplotlib"},
        ),
        (
            "hapvr.collection, hapvr.steps.baseline, hapvr.steps.features",
            {"torch", "mlflow", "polars", "matplotlib", "yt_dlp", "h5py"},
        ),
        ("hapvr.train.loop, hapvr.trainer", {"timm", "torchvision", "mlflow", "matplotlib"}),
    ],
)
def test_imports_stay_cheap(modules: str, heavy: set[str]) -> None:
    """What answers does not load torch, and what trains does not load timm."""
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    assert run_python("-c", code).strip() == "[]"


def test_help_loads_no_library_of_the_work() -> None:
    """Neither what works nor what reads configurations."""
    heavy = {
        "hapvr.config",
        "torch",
        "numpy",
        "polars",
        "pyarrow",
        "yaml",
        "mlflow",
        "dagster",
        "timm",
        "yt_dlp",
    }
    code = (
        "import atexit, sys; from hapvr.cli import main\n"
        f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules)))); main()"
    )
    assert run_python("-c", code, "score", "--help").endswith("[]\n")


@pytest.mark.slow
def test_ingesting_and_checking_load_neither_networks_nor_the_index(small_project: Project) -> None:
    """Each shard is a run of its own, so their imports count as often as there are shards."""
    folder = Path(small_project.config.data_root).parent
    code = (
        "import sys; from pathlib import Path; from hapvr.steps.project import Project\n"
        "from hapvr.steps import quality, sources, videos\n"
        "project = Project.open(Path('config.yaml'), folder=Path('.'))\n"
        "for check in (quality.check_videos, quality.check_frames):\n"
        "    assert check(project, 'own-test-00000')\n"
        "print(sorted({'torch', 'mlflow', 'lightning_fabric', 'matplotlib', 'lance', "
        "'pandas'} & set(sys.modules)))"
    )
    assert run_python("-c", code, cwd=folder).strip() == "[]"
