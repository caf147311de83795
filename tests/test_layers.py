"""Imports point down, and the fences hold.

Read from the syntax trees, so a forbidden import is found wherever it hides in a function. A layer is a row;
rooms of one row do not know each other. Fences keep torch, zmq, the compiled module and the environment in
the rooms that may know them. Type-only imports (`if TYPE_CHECKING:`) obey the layers but not the fences.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "godmw"

LAYERS = [
    {"errors", "ids", "clock", "lines"},
    {"config"},
    {"protocol", "kernels"},
    {"compression", "data", "membership", "scaling", "monitor"},
    {"client", "collectives"},
    {"checkpoint"},
    {"master", "worker", "simulate"},
    {"testing", "frontends", "federated", "dashboard"},
    {"bench", "demo"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# module prefixes, relative to the package
ZMQ_ALLOWED = ["client", "master", "worker", "testing/raw_peer"]
NATIVE_ALLOWED = ["kernels/native"]
ENVIRON_ALLOWED = ["cli", "worker/agent", "worker/job", "frontends/pytorch", "kernels/dispatch"]
TORCH_FREE = [
    *["errors", "ids", "clock", "lines", "config", "protocol", "membership", "scaling", "client", "master"],
    *["worker/agent", "simulate", "data/indices", "data/batches", "data/table"],
    *["data/ledger", "data/audit", "collectives/schedule"],
    *["collectives/cost_model", "checkpoint/store", "monitor", "cli", "kernels"],
]
TORCH_NAMES = ("torch", "torchvision", "torchgen", "safetensors.torch")


class Import:
    """One imported module: dotted name, line, whether at module level, whether for types only."""

    def __init__(self, name: str, line: int, top: bool, typing_only: bool) -> None:
        self.name, self.line, self.top, self.typing_only = name, line, top, typing_only


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def key(path: Path) -> str:
    """`godmw/worker/agent/__init__.py` -> `worker/agent`; `godmw/errors.py` -> `errors`."""
    relative = path.relative_to(PACKAGE).with_suffix("")
    return "/".join(part for part in relative.parts if part != "__init__")


def dotted(path: Path) -> str:
    return ".".join(["godmw", *[part for part in key(path).split("/") if part]])


def within(path: Path, prefixes: list[str]) -> bool:
    name = key(path)
    return any(name == prefix or name.startswith(prefix + "/") for prefix in prefixes)


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def find_imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """All imports of a module, `from x import y` giving both `x` and `x.y`, relative ones made absolute."""
    package = module if is_package else module.rpartition(".")[0]

    def visit(node: ast.AST, top: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, top, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield Import(base, node.lineno, top, typing_only)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, top, typing_only)
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, node.lineno, top, typing_only)
        if isinstance(node, ast.If) and is_type_checking(node.test):
            for child in node.body:
                yield from visit(child, top, True)
            for child in node.orelse:
                yield from visit(child, top, typing_only)
            return
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, top and not inside, typing_only)

    yield from visit(tree, True, False)


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


@cache
def imports(path: Path) -> tuple[Import, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(find_imports(tree, dotted(path), path.name == "__init__.py"))


def room_of_import(name: str) -> str | None:
    """The room an import reaches into, None for other packages and for names of the package's root."""
    parts = name.split(".")
    if parts[0] != "godmw" or len(parts) < 2 or parts[1] in ("__version__", "_native"):
        return None
    return parts[1]


def is_torch(name: str) -> bool:
    return any(name == torch or name.startswith(torch + ".") for torch in TORCH_NAMES)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_room_has_a_layer() -> None:
    rooms = {key(path).split("/")[0] for path in modules() if key(path)}
    assert rooms - LEVEL.keys() == set(), "a new room needs a row in LAYERS"


def test_imports_point_down() -> None:
    wrong = []
    for path in modules():
        here = key(path).split("/")[0]
        for item in imports(path):
            there = room_of_import(item.name)
            if not here or there is None or there == here:
                continue
            if there not in LEVEL:
                wrong.append(f"{where(path, item.line)} imports {item.name}: no such room or a public name")
            elif LEVEL[there] >= LEVEL[here]:
                wrong.append(f"{where(path, item.line)} {here} imports {item.name}, which is not below it")
    assert sorted(set(wrong)) == []


def test_the_root_imports_no_room() -> None:
    found = [
        item.name
        for item in imports(PACKAGE / "__init__.py")
        if room_of_import(item.name) and not item.typing_only
    ]
    assert found == []


@pytest.mark.parametrize(
    ("fenced", "allowed"),
    [("zmq", ZMQ_ALLOWED), ("godmw._native", NATIVE_ALLOWED)],
)
def test_fence(fenced: str, allowed: list[str]) -> None:
    wrong = [
        where(path, item.line)
        for path in modules()
        if not within(path, allowed)
        for item in imports(path)
        if not item.typing_only and (item.name == fenced or item.name.startswith(fenced + "."))
    ]
    assert wrong == [], f"{fenced} only in {allowed}"


def test_torch_free_rooms_do_not_import_torch() -> None:
    wrong = [
        where(path, item.line)
        for path in modules()
        if within(path, TORCH_FREE)
        for item in imports(path)
        if not item.typing_only and is_torch(item.name)
    ]
    assert wrong == []


def test_importing_a_torch_free_room_never_loads_torch() -> None:
    """Followed through the package's own module-level imports, each package's `__init__` included."""
    by_name = {dotted(path): path for path in modules()}

    def loaded_with(name: str) -> Iterator[str]:
        parts = name.split(".")
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))

    def story(path: Path) -> list[str] | None:
        seen, trail = {dotted(path)}, [(dotted(path), [dotted(path)])]
        while trail:
            name, story = trail.pop()
            for item in imports(by_name[name]):
                if item.typing_only or not item.top:
                    continue
                if is_torch(item.name):
                    return [*story, item.name]
                for loaded in loaded_with(item.name):
                    if loaded in by_name and loaded not in seen:
                        seen.add(loaded)
                        trail.append((loaded, [*story, loaded]))
        return None

    stories = [story(path) for path in modules() if within(path, TORCH_FREE)]
    assert [" -> ".join(found) for found in stories if found] == []


def environment_reads(tree: ast.Module) -> Iterator[int]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            if isinstance(node.value, ast.Name) and node.value.id == "os":
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            if any(alias.name in names for alias in node.names):
                yield node.lineno


def test_environment_is_read_at_the_entries_only() -> None:
    wrong = [
        where(path, line)
        for path in modules()
        if not within(path, ENVIRON_ALLOWED)
        for line in environment_reads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wrong == [], f"environment variables are read only in {ENVIRON_ALLOWED}"


def test_the_reader_of_imports_sees_what_hides() -> None:
    source = """
from typing import TYPE_CHECKING
import importlib
if TYPE_CHECKING:
    import torch
else:
    import zmq
def f():
    from ..errors import GodmwError
    importlib.import_module("godmw.master.server")
"""
    found = {
        item.name: (item.top, item.typing_only)
        for item in find_imports(ast.parse(source), "godmw.worker.agent.main", is_package=False)
    }
    assert found["torch"] == (True, True)
    assert found["zmq"] == (True, False)
    assert found["godmw.worker.errors.GodmwError"] == (False, False)
    assert found["godmw.master.server"] == (False, False)
    reads = environment_reads(ast.parse("import os\nos.environ['A']\nfrom os import getenv"))
    assert sorted(reads) == [2, 3]
