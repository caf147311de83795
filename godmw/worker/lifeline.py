"""A worker's tie to its agent: a pipe that ends when the agent does, however that comes about.

On Linux the kernel has killed the process by then (PR_SET_PDEATHSIG); where it has not, this does.  Knows no
message and decides nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading


def hold(descriptor: int) -> threading.Thread:
    """End this process and its group once the pipe at `descriptor` (``GODMW_LIFELINE``) ends."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            if os.read(descriptor, 1):
                return
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=wait, name="lifeline", daemon=True)
    thread.start()
    return thread
