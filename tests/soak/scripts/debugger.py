"""Hold a process as a debugger does: python debugger.py PID SECONDS

PTRACE_ATTACH to every thread (state `t` in /proc), wait, detach.  Prints `held` when all of them stand.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

ATTACH, DETACH, WALL = 16, 17, 0x40000000


def main() -> None:
    pid, for_s = int(sys.argv[1]), float(sys.argv[2])
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long
    held: list[int] = []
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            if ptrace(ATTACH, int(name), None, None) != 0:
                raise OSError(ctypes.get_errno(), f"PTRACE_ATTACH {name}")
            os.waitpid(int(name), WALL)
            held.append(int(name))
        state = Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0]
        print("held", state, flush=True)
        time.sleep(for_s)
    finally:
        for thread in held:
            ptrace(DETACH, thread, None, None)


if __name__ == "__main__":
    main()
