"""The wheel holds what the tree holds, with the compiled kernels or, where nothing compiles, without them.

Each test builds a wheel from a copy of the repository's files, as `pip install .` does.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The wheel's own package in place of the one under test, then the command.
RUN_FROM = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, sys.argv.pop(1))
from godmw.cli.main import main
main()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the repository: tracked files, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    copy = tmp_path / "source"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def build(source: Path, **environment: str) -> tuple[Path | None, str]:
    """The wheel, or None, and what the build said."""
    unset = {"GODMW_REQUIRE_NATIVE", "GODMW_CUDA"}
    base = {name: value for name, value in os.environ.items() if name not in unset}
    out = source.parent / "wheels"
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out), str(source)],
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(out.glob("*.whl"))
    return (wheels[0] if ended.returncode == 0 else None), ended.stdout + ended.stderr


def contents(wheel: Path) -> tuple[set[str], set[str]]:
    """What the wheel holds: files of the package, and compiled modules."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.startswith("godmw/_native.")}
    return names - compiled, compiled


def tree(source: Path) -> set[str]:
    return {str(path.relative_to(source)) for path in (source / "godmw").rglob("*") if path.is_file()}


def env_of(wheel: Path, tmp_path: Path) -> dict[str, object]:
    """`godmw env --json` of the wheel's content."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    told = subprocess.run(
        [sys.executable, "-c", RUN_FROM, str(tmp_path / "installed"), "env", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(told.stdout)
    return found


def test_the_wheel_holds_the_tree(source: Path, tmp_path: Path) -> None:
    wheel, said = build(source, GODMW_REQUIRE_NATIVE="1")
    assert wheel is not None, said
    files, compiled = contents(wheel)
    assert files == tree(source)
    assert len(compiled) == 1
    assert env_of(wheel, tmp_path)["native"] is True


@pytest.mark.parametrize("broken", ["no compiler", "code that does not compile"])
def test_without_native_the_package_installs_and_works(source: Path, tmp_path: Path, broken: str) -> None:
    environment = {}
    if broken == "no compiler":
        environment["CXX"] = str(tmp_path / "no-such-compiler")
    else:
        (source / "native" / "src" / "pack.cpp").write_text("this is not C++\n", encoding="utf-8")
    wheel, said = build(source, **environment, GODMW_REQUIRE_NATIVE="1")
    assert wheel is None, "a failure to compile must be loud where native is required"
    wheel, said = build(source, **environment)
    assert wheel is not None, said
    files, compiled = contents(wheel)
    assert files == tree(source)
    assert compiled == set()
    told = env_of(wheel, tmp_path)
    assert (told["native"], told["native_reason"]) == (False, "installed without compiled kernels")
