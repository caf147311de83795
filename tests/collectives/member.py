"""A member as a process of its own, driven over a pipe: what tests kill, stop and continue.

`Crew` starts members from a fork server that has torch loaded. A command is a tuple; whatever happens in a
member comes back as an event (monotonic seconds, name, values), which all processes of a host share.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from godmw.collectives.endpoint import Endpoint
from godmw.collectives.forming import form
from godmw.collectives.links import Links
from godmw.collectives.rendezvous import Rendezvous

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.collectives.member"])

Event = tuple[float, str, Any]


class Member:
    """The commands, each a method; state: the endpoint and one Links a generation."""

    def __init__(self, pipe: Connection, worker: str) -> None:
        self.pipe, self.worker = pipe, worker
        self.lock = threading.Lock()
        endpoint = Endpoint("127.0.0.1", "token").start()
        self.hub = Rendezvous(endpoint, worker)
        self.links: dict[int, Links] = {}
        self.dies_at = ""
        self.contribution = torch.empty(0)
        self.tell("address", endpoint.address)

    def tell(self, name: str, value: Any = None) -> None:
        with self.lock:
            self.pipe.send((time.monotonic(), name, value))

    def probe(self, point: str) -> None:
        if point == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def form(self, generation: int, rank: int, members: list[tuple[str, str]], attempt_s: float) -> None:
        def forming(cancelled: Callable[[], bool]) -> Any:
            return form(
                generation,
                rank,
                members,
                self.hub,
                cancelled=cancelled,
                report=lambda missing: self.tell("missing", (generation, missing)),
                attempt_s=attempt_s,
                probe=self.probe,
            )

        self.links[generation] = Links(
            generation=generation,
            rank=rank,
            members=members,
            form=forming,
            on_formed=lambda number: self.tell("formed", number),
            on_broken=lambda *what: self.tell("broken", what),
            probe=self.probe,
        ).start()

    def allreduce(self, generation: int, elements: int, value: float, times: int = 1) -> None:
        links = self.links[generation]
        self.contribution = torch.full((elements,), value)
        out = links.results([[self.contribution]])[0]

        def job(ring: Any) -> None:
            for _ in range(times):
                ring.allreduce([self.contribution], out)
            word = ring.ready(int(value))
            self.tell("sum", (generation, [float(out[0].min()), float(out[0].max())], word))

        links.submit(job)

    def overwrite(self, value: float) -> None:
        self.contribution.fill_(value)

    def abandon(self, generation: int) -> None:
        began = time.monotonic()
        self.links.pop(generation).abandon()
        self.tell("abandoned", time.monotonic() - began)

    def census(self) -> None:
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.tell("census", (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident))

    def die_at(self, point: str) -> None:
        self.dies_at = point


def main(pipe: Connection, worker: str) -> None:
    torch.set_num_threads(1)
    member = Member(pipe, worker)
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            return
        getattr(member, name)(*arguments)


class Crew:
    """The test's side: starts members and talks to them by their number."""

    def __init__(self, count: int) -> None:
        self.pipes: list[Connection] = []
        self.processes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(theirs, f"w{number}"), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.addresses = [self.next(number, "address")[2] for number in range(count)]

    def do(self, number: int, *command: Any) -> None:
        self.pipes[number].send(command)

    def next(self, number: int, *names: str, timeout_s: float = 30.0) -> Event:
        """The next event of one of these names; others before it are passed over."""
        ends = time.monotonic() + timeout_s
        while True:
            assert self.pipes[number].poll(max(0.0, ends - time.monotonic())), f"w{number}: no {names}"
            event: Event = self.pipes[number].recv()
            if event[1] in names:
                return event

    def nothing_more(self, number: int, name: str) -> bool:
        """Whether no event of this name lies in the pipe."""
        while self.pipes[number].poll(0):
            if self.pipes[number].recv()[1] == name:
                return False
        return True

    def form(self, generation: int, numbers: list[int], attempt_s: float = 1.0) -> None:
        members = [(f"w{number}", self.addresses[number]) for number in numbers]
        for rank, number in enumerate(numbers):
            self.do(number, "form", generation, rank, members, attempt_s)

    def formed(self, numbers: list[int]) -> float:
        """Waits for all of them; when the last was, in monotonic seconds."""
        return max(self.next(number, "formed")[0] for number in numbers)

    def kill(self, number: int, number_of_signal: int) -> float:
        os.kill(self.processes[number].pid or 0, number_of_signal)
        return time.monotonic()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
        for pipe in self.pipes:
            pipe.close()
