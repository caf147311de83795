"""The fork server: a small copy of the training process from which loader processes are forked.

It is forked once, before the training process has any socket, and forks a loader whenever it is handed a
channel.  So a loader knows every class that the script had defined by then, and holds none of the job's
sockets: a forked child that kept a dead worker's socket open would hide the death from its peers.  Server
and loaders are killed by the kernel at the instant their parent dies, also one that dies while they
start.  Nothing here knows what a loader does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import stat
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator

from godmw.errors import JobFailed

Serve = Callable[[socket.socket], None]
_PR_SET_PDEATHSIG = 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ForkServer:
    """The training process's side of its fork server."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._finalizer = weakref.finalize(self, _end, pid, os.getpid(), control)

    def spawn(self) -> socket.socket:
        """Fork a loader; returns our end of its channel.  Raises JobFailed when the server is gone."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"\1"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise JobFailed(
                f"the fork server (process {self.pid}) is gone: {error.strerror}",
                hint="was it killed, or memory short? num_workers=0 loads in the training process",
            ) from error
        finally:
            theirs.close()
        return ours

    def close(self) -> None:
        """End the server, and with it every loader."""
        self._finalizer()


def _end(pid: int, owner: int, control: socket.socket) -> None:
    control.close()
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def start_fork_server(serve: Serve) -> ForkServer:
    """Fork the server from this process; its loaders run `serve(channel)` and exit.

    To be called from the main thread before the process opens a socket of the job.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent, main_thread = os.getpid(), threading.current_thread() is threading.main_thread()
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads at a fork: the child runs in the one that forked, and takes no lock of
        # others
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with _last_act():
            # the kernel watches the forking thread: one that may end before its process must not be watched
            _die_with(parent, libc if main_thread else None)
            _settle(keep=theirs.fileno())
            _fork_loaders(theirs, serve, libc)
    theirs.close()
    return ForkServer(pid, ours)


@contextlib.contextmanager
def _last_act() -> Iterator[None]:
    """Whatever happens inside, the process ends there: a fork never returns into its parent's story."""
    code = 1
    try:
        yield
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int, libc: ctypes.CDLL | None) -> None:
    """Be killed when `parent` dies; end now if it is dead already."""
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _settle(keep: int) -> None:
    """Leave the parent's affairs: its sockets, its signals."""
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)  # the parent decides when this ends
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else map(str, range(256)):
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd != keep and stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.dup2(null, fd)  # not closed: an object of the parent's may still close the number one day


def _fork_loaders(control: socket.socket, serve: Serve, libc: ctypes.CDLL | None) -> None:
    me = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a loader ended: no zombies
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(control, 1, 1)
        except ConnectionResetError:
            return
        if not data:
            return
        with socket.socket(fileno=fds[0]) as channel:
            if os.fork() == 0:
                with _last_act():
                    _die_with(me, libc)
                    control.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    serve(channel)
