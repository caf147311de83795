"""The processes an agent starts: each in a session of its own, bound to the agent's life, watched by
SIGCHLD.

A child gets PR_SET_PDEATHSIG (the kernel kills it, stopped or not, when the thread that started it ends:
children are started from the main thread) and the reading end of a *lifeline* pipe.  The agent is the
subreaper of all that descends from it, and a keeper process (``kin``) ends what is left when the agent
itself is killed.  Signals and exits wake the loop through one descriptor.  Nothing here decides whether a
child is started again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from godmw.errors import InternalError
from godmw.worker.agent import kin
from godmw.worker.agent.environment import LIFELINE, MARK

SWEEPS = 40  # at most, for what hangs in the kernel; usually the second finds nothing
LAST_WORDS_BYTES = 8 * 1024
READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024  # a child goes on printing while the agent is stopped
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Output = Callable[["Process", str, bytes], None]  # (whose, "out" or "err", what)


@dataclasses.dataclass(slots=True)
class Process:
    """A started child; ``name`` and ``incarnation`` are its caller's, ``pid`` is also its session's."""

    name: str
    incarnation: int
    popen: subprocess.Popen[bytes]
    pipes: dict[int, str] = dataclasses.field(default_factory=dict)  # descriptor -> "out" or "err"
    tail: bytearray = dataclasses.field(default_factory=bytearray)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def last_words(self) -> str:
        return self.tail.decode("utf-8", "replace")


class Children:
    """All processes of one agent.  ``mark`` is what they carry as GODMW_AGENT."""

    def __init__(self, mark: str, output: Output) -> None:
        self.mark = mark
        self.processes: dict[int, Process] = {}
        self.signalled: list[int] = []
        self._sweeping: dict[int, tuple[list[str], int]] = {}
        self._output = output
        self._prctl: Callable[..., int] | None = None
        self._parent = 0
        self._woken: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._lifeline = (-1, -1)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._handlers: dict[int, Any] = {}
        self._old_wake = -1

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Take the signals of this process, and all its children, and start the keeper.  Main thread
        only.
        """
        if threading.current_thread() is not threading.main_thread():
            raise InternalError(
                "an agent runs in the main thread: its children end with the thread that starts them"
            )
        self._parent = os.getpid()
        if sys.platform == "linux":
            self._prctl = ctypes.CDLL(None, use_errno=True).prctl
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        for signum in (*(HANDLED[:2] if ignored else HANDLED), signal.SIGCHLD):
            self._handlers[signum] = signal.signal(signum, _nothing)
        self._old_wake = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._lifeline = os.pipe()
        self._start_keeper()

    def _start_keeper(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", kin.__file__, f"{MARK}={self.mark}"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env={}, bufsize=0,
        )  # fmt: skip
        for pid in self.processes:
            self._tell_keeper("+", pid)

    def close(self) -> None:
        """End everything that is left, then give the signals back."""
        kin.end([f"{MARK}={self.mark}"], [process.pid for process in self.processes.values()])
        self.reap()
        for process in list(self.processes.values()):
            self._forget(process)
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.wait()
        for descriptor in self._lifeline:
            if descriptor >= 0:
                os.close(descriptor)
        if self._woken is not None and self._wake is not None:
            signal.set_wakeup_fd(self._old_wake)
            for signum, handler in self._handlers.items():
                signal.signal(signum, handler)
            self._wake.close()
            self._woken.close()

    def fileno(self) -> int:
        """Readable when a signal has come, an exit of a child among them."""
        return -1 if self._woken is None else self._woken.fileno()

    def spawn(self, name: str, incarnation: int, command: Sequence[str], env: Mapping[str, str]) -> Process:
        """Start a child.  Raises OSError when it cannot be."""
        lifeline = self._lifeline[0]
        with warnings.catch_warnings():
            # a fork beside other threads is safe here: the child calls prctl and execs
            warnings.simplefilter("ignore", DeprecationWarning)
            popen = subprocess.Popen(
                list(command), env={**env, MARK: self.mark, LIFELINE: str(lifeline)}, pass_fds=(lifeline,),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True, preexec_fn=self._bind,
            )  # fmt: skip
        process = Process(name, incarnation, popen)
        for stream, kind in ((popen.stdout, "out"), (popen.stderr, "err")):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            _enlarge(stream.fileno())
            process.pipes[stream.fileno()] = kind
        self.processes[popen.pid] = process
        self._tell_keeper("+", popen.pid)
        return process

    def _bind(self) -> None:
        """In the child, before exec: to be killed when the agent's main thread ends, or has ended
        already.
        """
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(1)

    def _tell_keeper(self, sign: str, pid: int) -> None:
        if self._keeper is None or self._keeper.stdin is None:
            return
        try:
            self._keeper.stdin.write(f"{sign}{pid}\n".encode())
        except OSError:
            return  # the keeper was killed: PDEATHSIG and the lifeline are left

    # ---------------------------------------------------------------- what happens to them

    def wake(self) -> None:
        """Empty the descriptor; signals other than SIGCHLD are kept in ``signalled``."""
        if self._woken is None:
            return
        try:
            self.signalled += [signum for signum in self._woken.recv(4096) if signum in HANDLED]
        except BlockingIOError:
            return

    def read(self, descriptor: int) -> None:
        """Read one pipe that is ready."""
        process = next((item for item in self.processes.values() if descriptor in item.pipes), None)
        if process is not None:
            self._read(process, descriptor)

    def _read(self, process: Process, descriptor: int) -> bool:
        """Take what one pipe holds, at most READ_BYTES; False when nothing more comes now."""
        kind = process.pipes[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe(process, descriptor)
            return False
        if kind == "err":
            process.tail += data
            del process.tail[:-LAST_WORDS_BYTES]
        self._output(process, kind, data)
        return True

    def reap(self) -> list[Process]:
        """The children that have exited; their output is read to the end.  Adopted orphans are waited for
        too.
        """
        exited = []
        for process in list(self.processes.values()):
            if process.popen.poll() is not None:
                for descriptor in list(process.pipes):
                    for _ in range(2 * PIPE_BYTES // READ_BYTES):  # a grandchild may go on printing
                        if not self._read(process, descriptor):
                            break
                self._forget(process)
                exited.append(process)
        if self._keeper is not None and self._keeper.poll() is not None:
            self._start_keeper()
        self._reap_adopted()
        self._sweep()
        return exited

    def _reap_adopted(self) -> None:
        own = {*self.processes, self._keeper.pid if self._keeper is not None else 0}
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None or seen.si_pid in own:
                return  # one of ours that ended just now is told by the next SIGCHLD
            os.waitpid(seen.si_pid, os.WNOHANG)

    def _forget(self, process: Process) -> None:
        for descriptor in list(process.pipes):
            self._close_pipe(process, descriptor)
        self.processes.pop(process.pid, None)

    def _close_pipe(self, process: Process, descriptor: int) -> None:
        del process.pipes[descriptor]
        for stream in (process.popen.stdout, process.popen.stderr):
            if stream is not None and not stream.closed and stream.fileno() == descriptor:
                stream.close()

    def letters(self) -> dict[int, str]:
        """The state letter of every child's process, by pid."""
        seen = {pid: kin.stat(pid) for pid in self.processes}
        return {pid: item[0] for pid, item in seen.items() if item is not None}

    def signal(self, pid: int, signum: int) -> None:
        """Signal the process group of a child that has not been waited for."""
        if pid in self.processes:
            try:
                os.killpg(pid, signum)
            except OSError:
                return  # it has just ended: its exit is told by SIGCHLD

    def sweep(self, pid: int, marks: Sequence[str]) -> None:
        """End what a child that has exited left behind: its session, its descendants wherever they went.

        The first time at once, then with every ``reap`` until nothing is found.
        """
        self._sweeping[pid] = ([f"{MARK}={self.mark}", *marks], SWEEPS)
        self._sweep()

    def _sweep(self) -> None:
        for pid, (marks, times) in list(self._sweeping.items()):
            if kin.kill(marks, [pid]) and times > 1:
                self._sweeping[pid] = (marks, times - 1)
            else:
                del self._sweeping[pid]
                self._tell_keeper("-", pid)


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    """The wakeup descriptor carries the number; a handler must exist for it to be written."""


def _enlarge(descriptor: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return  # over the user's allowance: the usual 64 KiB serve
