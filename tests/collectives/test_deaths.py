"""Members as processes that are killed, stopped and continued: nobody is stuck, nobody adds what is late."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.collectives.member import Crew

MIB = 1 << 18  # elements of fp32


@pytest.fixture
def crew() -> Iterator[Callable[[int], Crew]]:
    made: list[Crew] = []

    def start(count: int) -> Crew:
        made.append(Crew(count))
        return made[-1]

    yield start
    for each in made:
        each.close()


def reform(crew: Crew, survivors: list[int], generation: int) -> float:
    """Abandons the generation before, forms anew, sums 4 MiB; when the last has it, in monotonic seconds."""
    for number in survivors:
        crew.do(number, "abandon", generation - 1)
    crew.form(generation, survivors)
    for number in survivors:
        crew.do(number, "allreduce", generation, 4 * MIB, number + 1.0)
    ends = 0.0
    for number in survivors:
        assert crew.next(number, "abandoned")[2] < 0.1, "abandoning waits for nobody"
        at, _, result = crew.next(number, "sum")
        assert result == (generation, [sum(n + 1.0 for n in survivors)] * 2, survivors[0] + 1)
        ends = max(ends, at)
    return ends


@pytest.mark.parametrize("count", [3, 4])
def test_a_killed_member_is_reported_by_name_and_the_rest_go_on(
    crew: Callable[[int], Crew], count: int
) -> None:
    members = crew(count)
    everyone = list(range(count))
    members.form(1, everyone)
    members.formed(everyone)
    for number in everyone:
        members.do(number, "allreduce", 1, 4 * MIB, 1.0, 10_000)
    time.sleep(0.2)
    killed_s = members.kill(1, signal.SIGKILL)
    # its right neighbour receives from it
    at, _, (generation, peer, stage) = members.next(2, "broken", timeout_s=5)
    assert (generation, peer) == (1, "w1")
    assert stage in ("reduce_scatter", "all_gather")
    assert at - killed_s < 1
    began_s = time.monotonic()
    ends_s = reform(members, [number for number in everyone if number != 1], 2)
    assert ends_s - began_s < 2


@pytest.mark.parametrize("elements", [100, 4 * MIB, 32 * MIB])
def test_a_stopped_member_holds_nobody_and_applies_nothing_when_continued(
    crew: Callable[[int], Crew], elements: int
) -> None:
    members = crew(3)
    members.form(1, [0, 1, 2])
    members.formed([0, 1, 2])
    members.kill(1, signal.SIGSTOP)
    for number in (0, 2):
        members.do(number, "allreduce", 1, elements, 1.0)
    time.sleep(0.2)
    began_s = time.monotonic()
    ends_s = reform(members, [0, 2], 2)
    assert ends_s - began_s < 2
    for number in (0, 2):
        members.do(number, "overwrite", 666.0)
    members.do(1, "allreduce", 1, elements, 1.0)
    members.kill(1, signal.SIGCONT)
    _, _, (generation, peer, _) = members.next(1, "broken", timeout_s=5)
    assert generation == 1
    assert peer in ("w0", "w2")
    assert members.nothing_more(1, "sum"), "a generation that is over gives no sum"
    # and it can come back as a member of another
    for number in (0, 2):
        members.do(number, "abandon", 2)
    members.do(1, "abandon", 1)
    members.form(3, [0, 1, 2])
    members.formed([0, 1, 2])
    for number in (0, 1, 2):
        members.do(number, "allreduce", 3, 100, 2.0)
    assert [members.next(number, "sum")[2] for number in (0, 1, 2)] == [(3, [6.0, 6.0], 2)] * 3


@pytest.mark.parametrize("point", ["forming", "forming_met", "forming_linked"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_death_while_forming_leaves_nobody_stuck(
    crew: Callable[[int], Crew], point: str, victim: int
) -> None:
    members = crew(3)
    survivors = [number for number in range(3) if number != victim]
    members.do(victim, "die_at", point)
    members.form(1, [0, 1, 2], attempt_s=0.25)
    for number in survivors:
        _, name, value = members.next(number, "missing", "formed", timeout_s=10)
        if name == "missing":
            assert value == (1, [f"w{victim}"])
    ends_s = time.monotonic() + 10
    reform(members, survivors, 2)
    assert time.monotonic() < ends_s


def test_sixty_abandoned_generations_leave_nothing(crew: Callable[[int], Crew]) -> None:
    """Each with an allreduce that hangs on a member that is alive and silent."""
    members = crew(3)
    counts = []
    for generation in range(1, 61):
        members.form(generation, [0, 1, 2])
        members.formed([0, 1, 2])
        for number in (0, 1):
            members.do(number, "allreduce", generation, MIB, 1.0)
        for number in (0, 1, 2):
            members.do(number, "abandon", generation)
        for number in (0, 1, 2):
            members.next(number, "abandoned")
        if generation in (20, 60):
            counts.append([settled(members, number) for number in (0, 1, 2)])
    for (fds, threads, resident), (fds_later, threads_later, resident_later) in zip(*counts, strict=True):
        assert fds_later <= fds
        assert threads_later <= threads
        assert resident_later - resident < 32 << 20


def settled(members: Crew, number: int) -> tuple[int, int, int]:
    """The census when it does not change any more."""
    before = (0, 0, 0)
    for _ in range(50):
        members.do(number, "census")
        now = members.next(number, "census")[2]
        if now[:2] == before[:2]:
            break
        before = now
        time.sleep(0.1)
    return now
