"""`godmw env`: what is installed here.

The first thing to ask for in a report of a fault. Nothing heavy is imported to say it: torch's version is
read from its metadata, and the kernels' own answer needs no numpy.
"""

import os
import sys
from importlib import metadata

import click

from godmw import __version__
from godmw.cli.options import emit, json_option
from godmw.kernels import dispatch


def torch_version() -> str | None:
    """The installed torch, read from its metadata: importing it would take seconds."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def cpus() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@click.command("env")
@json_option
def command(as_json: bool) -> None:
    """Show versions, the machine, and whether the native kernels are in use."""
    native, reason = dispatch.native_status()
    system = os.uname()
    emit(
        {
            "version": __version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch_version(),
            "native": native,
            "native_reason": reason,
            "isa": dispatch.isa(),
            "cpus": cpus(),
            "platform": f"{system.sysname}-{system.release}-{system.machine}".lower(),
        },
        as_json=as_json,
    )
