"""The layers of the code, as its imports show them."""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from hapvr.steps.project import Project
from tests.conftest import CHECKOUT, run_python


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, which is parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in it."""
    return {name for name, _ in imports(path)}


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Each module that a file imports, and the dotted name of what it takes of it."""
    return tuple(walked_imports(parsed(path)))


def walked_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """As `imports`, of a syntax tree."""
    for node in ast.walk(tree):
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
        ("lance", {Path("hapvr/search/lance_table.py")}),
        ("fastapi", {Path("hapvr/serving")}),
        ("starlette", {Path("hapvr/serving")}),
        ("uvicorn", {Path("hapvr/serving")}),
        ("prometheus_client", {Path("hapvr/serving/metrics.py")}),
        ("openvino", {Path("hapvr/networks/openvino_runtime.py")}),
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
        "ablations",
        "automation",
        "config",
        "config_file",
        "errors",
        "files",
        "seeding",
        "processors",
        "provenance",
        "reasons",
        "reporting",
        "scratch",
        "tables",
        "progress",
        "workers",
        "yaml_files",
    },
    {"model", "augment", "video"},
    {"losses", "networks", "data"},
    {"train", "benchmark", "demo", "scorer", "search", "registry"},
    {"steps"},
    {"chain"},
    {"collection"},
    {"serving", "care"},
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


def library_modules() -> dict[str, Path]:
    """Every module of hapvr by its dotted name."""
    modules = {}
    for path in sorted((CHECKOUT / "hapvr").rglob("*.py")):
        parts = path.relative_to(CHECKOUT).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path

    return modules


def own_imports(tree: ast.AST, modules: Collection[str]) -> set[str]:
    """The modules of hapvr that a part of a file imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}

    return names & set(modules)


def test_no_modules_import_each_other() -> None:
    """Nor do they in a longer circle, imports for types and inside functions included."""
    modules = library_modules()
    imported = {name: own_imports(parsed(path), modules) - {name} for name, path in modules.items()}
    # What nobody in the rest imports, or what imports nobody in it, is in no circle.
    while True:
        users = set().union(*imported.values())
        outside = {name for name, used in imported.items() if name not in users or not used}
        if not outside:
            break
        imported = {name: used - outside for name, used in imported.items() if name not in outside}

    assert set(imported) == set()


VERBS = "`hapvr --help`, and each verb, load what they need alone"
STEPS = "a run of one step loads that step alone; the search index is Lance"
LATE_IMPORTS = {
    "hapvr.commands.answers": VERBS,
    "hapvr.commands.duplicates": VERBS,
    "hapvr.commands.evaluation": VERBS,
    "hapvr.commands.index": VERBS,
    "hapvr.commands.models": VERBS,
    "hapvr.commands.outputs": VERBS,
    "hapvr.commands.pdq": VERBS,
    "hapvr.commands.scoring": VERBS,
    "hapvr.commands.search": VERBS,
    "hapvr.commands.stages": VERBS,
    "hapvr.commands.step_rows": VERBS,
    "hapvr.commands.terminal": VERBS,
    "hapvr.care.checks": "polars and torch, which an installation for searches does not have",
    "hapvr.care.forget_rows": "MLflow and downloads, which such an installation does not have",
    "hapvr.care.health": "MLflow takes seconds, and a collection without training has none",
    "hapvr.care.remakes": "torch, which such an installation does not have",
    "hapvr.chain.duplicates": STEPS,
    "hapvr.chain.features": STEPS,
    "hapvr.chain.ingest": STEPS,
    "hapvr.chain.look": STEPS,
    "hapvr.chain.search": STEPS,
    "hapvr.chain.training": STEPS,
    "hapvr.model.checkpoint": "torch, where only the description of a network is read",
    "hapvr.networks.encoder": "torch, which an installation for searches does not have",
    "hapvr.registry.client": "a bundle is opened only where a name leads to one",
    "hapvr.registry.travel": "torch, where a version is moved without networks",
    "hapvr.scorer.bundle": "torch, which a bundle of ONNX files does without",
    "hapvr.scorer.description": "pyarrow, which scoring of files does without",
    "hapvr.scorer.requests": "downloads, where only files are compared",
    "hapvr.steps.baseline": "MLflow, which an installation for searches does not have",
    "hapvr.steps.baseline_bundle": "torch, which such an installation does not have",
    "hapvr.steps.damaged_files": "downloads, where all files are local or generated",
    "hapvr.steps.features": "HDF5, which imported features alone need",
    "hapvr.steps.fetching": "downloads, where all files are local",
    "hapvr.steps.search_model": "torch, which an index with a bundle of ONNX files does without",
    "hapvr.steps.sources": "editing and generating videos, which most sources do not",
    "hapvr.steps.whitening": "torch, which imported whitening alone needs",
    "hapvr.train.sources.online_views": "torchvision, in a source without augmented views",
    "hapvr.trainer": "MLflow, in the processes of a training that do not track",
    "hapvr.video.sources": "tables of scenes and annotations, which few sources have",
}
"""Modules that import others of ours inside functions, and why."""


def test_imports_inside_functions_have_a_reason() -> None:
    """All others stand at the top, where a reader looks for them."""
    modules = library_modules()
    late = set()
    for name, path in modules.items():
        for node in ast.walk(parsed(path)):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and own_imports(node, modules):
                late.add(name)

    assert late - LATE_IMPORTS.keys() == set(), "move them to the top, or name the reason"
    assert LATE_IMPORTS.keys() - modules.keys() == set()


def test_nothing_private_is_imported() -> None:
    """A module that begins with an underscore is its owner's affair: no such import, of another
    package or of the standard library, and none of the parts of multiprocessing that are not
    documented."""
    undocumented = "popen_\\w+|spawn|reduction|resource_\\w+|semaphore_tracker|util|forkserver"
    undocumented = re.compile(rf"multiprocessing\.({undocumented})")
    private_imports = {
        (path.relative_to(CHECKOUT), name)
        for folder in ("hapvr", "assets", "pipelines")
        for path in (CHECKOUT / folder).rglob("*.py")
        for _, name in imports(path)
        if not name.startswith(("__future__", "hapvr.", "assets.", "pipelines."))
        if any(part.startswith("_") for part in name.split(".")) or undocumented.match(name)
    }
    assert private_imports == set()


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
            "hapvr.steps.searcher, hapvr.steps.duplicate_groups, hapvr.search.marks, "
            "hapvr.serving.server",
            {"torch", "mlflow", "timm", "yt_dlp", "openvino", "matplotlib"},
        ),
        (
            "hapvr.collection, hapvr.steps.baseline, hapvr.steps.features",
            {"torch", "mlflow", "polars", "matplotlib", "yt_dlp", "h5py"},
        ),
        ("hapvr.train.loop, hapvr.trainer", {"timm", "torchvision", "mlflow", "matplotlib"}),
        (
            "hapvr.care.health, hapvr.commands.stages",
            {"torch", "mlflow", "polars", "openvino", "lance"},
        ),
    ],
)
def test_imports_stay_cheap(modules: str, heavy: set[str]) -> None:
    """What answers does not load torch, what trains does not load timm, and what tells how a
    project is does not load Lance."""
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
        "from hapvr.steps import frames, quality, sources, videos\n"
        "project = Project.open(Path('config.yaml'), folder=Path('.'))\n"
        "for check in (quality.check_videos, quality.check_frames):\n"
        "    assert check(project, 'own-test-00000')\n"
        "print(sorted({'torch', 'mlflow', 'lightning_fabric', 'matplotlib', 'lance', "
        "'pandas'} & set(sys.modules)))"
    )
    assert run_python("-c", code, cwd=folder).strip() == "[]"
