"""House rules that a machine can check: sizes, prose, no printing, nothing that unpickles.

Every rule lists its offenders as `file:line`, so a failure says what to change. The same limits hold for the
library, the kernels, the tests and the examples; rules about the library's manners hold for `godmw/` alone.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", "godmw", "native", "tests", "examples"}
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 69
MAX_LINE_CHARS = 109
CODE_SUFFIXES = {".py", ".cpp", ".hpp", ".cu", ".cuh", ".h", ".c"}
PRINTING_ALLOWED = {"cli"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm"}
# torch.distributed's object collectives and pyzmq's object sockets unpickle what a peer sent
UNPICKLING_CALL = re.compile(
    r"^(recv_pyobj|send_pyobj|(all_)?(gather|broadcast|scatter)_object(_list)?|(send|recv)_object_list)$"
)


@cache
def files() -> tuple[Path, ...]:
    """What the repository holds: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(sorted(path for path in set(paths) if path.is_file()))


def code() -> list[Path]:
    return [path for path in files() if path.suffix in CODE_SUFFIXES]


def python(*, under: str = "") -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.is_relative_to(ROOT / under)]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_top_level_holds_nothing_else() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in files()}
    assert {name for name in top if not name.startswith(".")} - TOP_LEVEL == set()


def test_modules_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code()}
    assert [where(path, lines) for path, lines in lengths.items() if lines > MAX_MODULE_LINES] == []


def test_lines_are_short() -> None:
    wrong = [
        where(path, number)
        for path in code()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_LINE_CHARS
    ]
    assert wrong == []


def test_functions_are_short() -> None:
    wrong = [
        f"{where(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in python()
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert wrong == []


def test_modules_open_with_prose() -> None:
    """Anything of more than 40 lines says in 3 to 10 what it owns and what it must not know."""
    wrong = []
    for path in python(under="godmw"):
        if path.name == "__init__.py":
            continue
        length = len(path.read_text(encoding="utf-8").splitlines())
        prose = ast.get_docstring(tree(path), clean=True) or ""
        lines = len(prose.splitlines())
        if not prose or (length > 40 and not 3 <= lines <= 10):
            wrong.append(f"{where(path, 1)} opens with {lines} lines of prose")
    assert wrong == []


def test_the_library_does_not_print() -> None:
    wrong = [
        where(path, node.lineno)
        for path in python(under="godmw")
        if path.relative_to(ROOT / "godmw").parts[0] not in PRINTING_ALLOWED
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    wrong = [
        where(path, number)
        for path in code()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert wrong == []


def test_nothing_points_outside_the_repository() -> None:
    outside = re.compile(re.escape("../" + "shared") + r"|(?<![\w.])/wo" + r"rk/|/ro" + r"ot/")
    wrong = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [where(path, n) for n, line in enumerate(text.splitlines(), 1) if outside.search(line)]
    assert wrong == []


def unpickling(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every place that may turn bytes into objects by running code."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            names = []
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in UNPICKLERS)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        call, owner = node.func.attr, node.func.value
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if UNPICKLING_CALL.match(call):
            yield node.lineno, call
        if call == "load" and isinstance(owner, ast.Name) and owner.id == "torch":
            safe = given.get("weights_only")
            if not (isinstance(safe, ast.Constant) and safe.value is True):
                yield node.lineno, "torch.load without weights_only=True"
        if "allow_pickle" in given:
            allowed = given["allow_pickle"]
            if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                yield node.lineno, f"{call}(allow_pickle=...)"


def test_nothing_unpickles() -> None:
    wrong = [
        f"{where(path, line)} {what}"
        for path in python(under="godmw")
        for line, what in unpickling(tree(path))
    ]
    assert wrong == []


def test_the_search_for_unpickling_finds_it() -> None:
    source = """
import pickle
from multiprocessing import shared_memory
import torch, numpy, torch.distributed as dist
torch.load(f)
torch.load(f, weights_only=True)
numpy.load(f, allow_pickle=True)
dist.all_gather_object(a, b)
socket.recv_pyobj()
"""
    assert [line for line, _ in sorted(unpickling(ast.parse(source)))] == [2, 5, 7, 8, 9]
