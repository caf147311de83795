"""One command line, run in this process, with what it printed."""

import pytest

from godmw.cli.main import run


def godmw(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of ``godmw ARGS``."""
    code = run([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return int(code), out, err
