"""The house rules, as tests: who may import whom, what may load torch, how long things may be."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"

# Lowest first. A package imports only packages of lower floors; neighbours on a floor never meet.
FLOORS = (
    {"errors", "telemetry", "spec"},
    {"flow", "config"},
    {"ops"},
    {"kernels", "quantization", "cache", "text"},
    {"model"},
    {"inputs", "scheduling", "execution", "outputs"},
    {"engine"},
    {"serving"},
    {"cli"},
    {"entrypoints"},
)
FLOOR = {package: height for height, floor in enumerate(FLOORS) for package in floor}

# The only places that may import torch; the second backend and the meaning of the ops.
TORCH_PLACES = ("ops/reference.py", "ops/conformance.py", "execution/torch/")
ENVIRONMENT_READER = "config/environment.py"

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
MAX_ENVIRONMENT_VARIABLES = 8


def source_files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "_native" not in path.parts]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that an import statement names, deferred and type-only ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: write the full module name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.fixture(params=source_files(), ids=name_of)
def source(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_is_something_to_check() -> None:
    assert len(source_files()) > 60
    assert {package_of(path) for path in source_files()} >= set(FLOOR)


def test_every_package_has_a_floor() -> None:
    assert {package_of(path) for path in source_files()} <= {*FLOOR, "__init__", "__main__"}


def test_imports_point_downwards(source: Path) -> None:
    package = package_of(source)
    if package not in FLOOR:
        return
    for module in imports(source):
        if not module.startswith("octavo."):
            continue
        target = module.split(".")[1]
        if target in FLOOR and target != package:
            assert FLOOR[target] < FLOOR[package], f"{package} may not import {target} ({module})"


def test_torch_stays_in_its_places(source: Path) -> None:
    if name_of(source).startswith(TORCH_PLACES):
        return
    roots = {module.split(".")[0] for module in imports(source)}
    assert not roots & {"torch", "transformers"}


def test_only_one_file_reads_the_environment(source: Path) -> None:
    if name_of(source) != ENVIRONMENT_READER:
        assert not re.search(r"\bos\.environ\b|\bgetenv\b|\bimport environ\b", source.read_text())


def test_environment_variables_are_few() -> None:
    names = set(re.findall(r"\bOCTAVO_[A-Z_]+", (PACKAGE / ENVIRONMENT_READER).read_text()))
    assert 0 < len(names) <= MAX_ENVIRONMENT_VARIABLES


def test_nothing_dangerous_is_called(source: Path) -> None:
    assert not {module.split(".")[0] for module in imports(source)} & {"pickle", "marshal", "shelve"}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, f"line {node.lineno}"


def test_file_is_short(source: Path) -> None:
    assert len(source.read_text().splitlines()) <= MAX_FILE_LINES


def test_functions_are_short(source: Path) -> None:
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(source) if f.end_lineno is not None}
    assert {name: lines for name, lines in long.items() if lines > MAX_FUNCTION_LINES} == {}


def test_functions_take_few_parameters(source: Path) -> None:
    def count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        a = function.args
        names = [arg.arg for arg in (*a.posonlyargs, *a.args)]
        return len([name for name in names if name not in ("self", "cls")]) + len(a.kwonlyargs)

    if name_of(source) != "engine/llm.py":  # vLLM's signatures are not ours to shorten
        assert {f.name: count(f) for f in functions(source) if count(f) > MAX_PARAMETERS} == {}


def test_module_says_what_it_decides(source: Path) -> None:
    if source.name == "__init__.py" and source.parent != PACKAGE:
        assert source.read_text() == "", "only the top __init__.py may hold anything"
    else:
        assert ast.get_docstring(ast.parse(source.read_text()))


def test_no_mutable_globals(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        assert not isinstance(node, ast.Global), f"line {node.lineno}"


def test_nothing_is_left_undone(source: Path) -> None:
    assert not re.search(r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError", source.read_text())


def test_documents_name_only_paths_that_exist() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert documents
    named = re.compile(r"`((?:octavo|native|docs|tests|scripts|benchmarks)/[\w./{},*-]*)`")
    for document in documents:
        for path in named.findall(document.read_text()):
            plain = re.sub(r"\{.*?\}|\*.*", "", path)
            assert (ROOT / plain).exists() or (ROOT / plain).parent.is_dir(), f"{document.name} names {path}"
            if not re.search(r"[{*]|x\.py$", path):
                assert (ROOT / path).exists(), f"{document.name} names {path}"


def test_architecture_page_fits_on_a_few_screens() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 150


def test_decisions_are_short_and_complete() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert len(decisions) >= 10
    for decision in decisions:
        text = decision.read_text()
        assert len(text.splitlines()) <= 60, decision.name
        for heading in ("## Context", "## Options", "## Decision", "## Cost", "## We would notice"):
            assert heading in text, f"{decision.name} lacks {heading}"
