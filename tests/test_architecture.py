"""The house rules, as tests: who may import whom, what may load torch, how long things may be."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"

# Lowest first. A package imports only packages of lower floors; neighbours on a floor never meet.
FLOORS = (
    {"errors", "telemetry", "spec"},
    {"flow", "config"},
    {"ops"},
    {"kernels", "quantization", "cache", "text"},
    {"model"},
    {"inputs", "scheduling", "execution", "outputs", "compression"},
    {"engine"},
    {"api", "serving"},
    {"cli"},
    {"entrypoints", "sampling_params"},
)
FLOOR = {package: height for height, floor in enumerate(FLOORS) for package in floor}

# The only places that may import torch; the second backend and the meaning of the ops.
TORCH_PLACES = ("ops/reference.py", "ops/reference_draws.py", "ops/conformance.py", "execution/torch/")
ENVIRONMENT_READER = "config/environment.py"
VLLM_SIGNATURES = ("api/llm.py", "api/llm_engine.py", "api/async_llm.py")  # not ours to shorten
# Packages whose names scripts written for vLLM import classes from; any other `__init__.py` is empty.
VLLM_PLACES = {"__init__.py", "inputs/__init__.py", "outputs/__init__.py"}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
MAX_ENVIRONMENT_VARIABLES = 8


@dataclass(frozen=True)
class Source:
    """One file of the package. `name` is its path inside the package, `package` its folder (or itself, at the top)."""

    name: str
    package: str
    text: str
    tree: ast.Module

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Every node of these kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def imports(self) -> Iterator[str]:
        """Every module that an import statement names, deferred and type-only ones included."""
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            else:
                yield node.module or ""
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def functions(self) -> Iterator[Any]:
        """Every function and method."""
        return self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)


def read_source(path: Path) -> Source:
    relative = path.relative_to(PACKAGE)
    text = path.read_text()
    return Source(relative.as_posix(), relative.parts[0].removesuffix(".py"), text, ast.parse(text))


SOURCES = [read_source(path) for path in sorted(PACKAGE.rglob("*.py")) if "_native" not in path.parts]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 100
    assert {source.package for source in SOURCES} == {*FLOOR, "__init__", "__main__"}


def test_imports_point_downwards() -> None:
    wrong = [
        f"{source.name}: {source.package} may not import {module}"
        for source in SOURCES
        for module in source.imports()
        if module.startswith("octavo.") and not may_import(source.package, module.split(".")[1])
    ]
    assert not wrong


def may_import(package: str, target: str) -> bool:
    if package not in FLOOR or target not in FLOOR:  # the top files import everything; `octavo.__version__`
        return True
    return package == target or FLOOR[target] < FLOOR[package]


def test_imports_name_the_full_module() -> None:
    wrong = [
        f"{source.name}:{node.lineno}" for source in SOURCES for node in source.nodes(ast.ImportFrom) if node.level > 0
    ]
    assert not wrong


def test_torch_stays_in_its_places() -> None:
    wrong = [
        f"{source.name} imports {module}"
        for source in SOURCES
        if not source.name.startswith(TORCH_PLACES)
        for module in source.imports()
        if module.split(".")[0] in ("torch", "transformers")
    ]
    assert not wrong


def test_only_one_file_reads_the_environment() -> None:
    reading = re.compile(r"\bos\.environ\b|\bgetenv\b|\bimport environ\b")
    assert {source.name for source in SOURCES if reading.search(source.text)} == {ENVIRONMENT_READER}


def test_environment_variables_are_few() -> None:
    names = set(re.findall(r"\bOCTAVO_[A-Z_]+", (PACKAGE / ENVIRONMENT_READER).read_text()))
    assert 0 < len(names) <= MAX_ENVIRONMENT_VARIABLES


def test_nothing_dangerous_is_used() -> None:
    modules = [
        f"{source.name} imports {module}"
        for source in SOURCES
        for module in source.imports()
        if module.split(".")[0] in ("pickle", "marshal", "shelve")
    ]
    calls = [
        f"{source.name}:{node.lineno} calls {node.func.id}"
        for source in SOURCES
        for node in source.nodes(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
    ]
    assert not modules + calls


def test_files_are_short() -> None:
    lines = {source.name: len(source.text.splitlines()) for source in SOURCES}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lines = {f"{s.name} {f.name}": f.end_lineno - f.lineno + 1 for s in SOURCES for f in s.functions()}
    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def test_functions_take_few_parameters() -> None:
    def count(function: ast.FunctionDef) -> int:
        given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        return len([argument for argument in given if argument.arg not in ("self", "cls")])

    counts = {f"{s.name} {f.name}": count(f) for s in SOURCES if s.name not in VLLM_SIGNATURES for f in s.functions()}
    assert {name: number for name, number in counts.items() if number > MAX_PARAMETERS} == {}


def test_modules_say_what_they_decide() -> None:
    inits = {source.name for source in SOURCES if source.name.endswith("/__init__.py")} - VLLM_PLACES
    assert not [source.name for source in SOURCES if source.name in inits and source.text]
    assert not [source.name for source in SOURCES if source.name not in inits and not ast.get_docstring(source.tree)]


def test_there_are_no_mutable_globals() -> None:
    assert not [f"{source.name}:{node.lineno}" for source in SOURCES for node in source.nodes(ast.Global)]


def test_nothing_is_left_undone() -> None:
    undone = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError")
    assert not [source.name for source in SOURCES if undone.search(source.text)]


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


def test_reported_failures_name_tests_that_there_are() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "reports.md").read_text())
    assert len(named) > 90
    for path, name in named:
        file = ROOT / "tests" / path.removeprefix("tests/")
        assert f"def {name}(" in file.read_text() if name else file.is_file(), (path, name)


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
