"""The network under the simulator: order, cuts, and what a death leaves on its way."""

from random import Random

import pytest

from godmw.simulate.agenda import Agenda
from godmw.simulate.network import Network


class Lab:
    """A network and what has arrived on it."""

    def __init__(self, seed: int = 0) -> None:
        self.agenda = Agenda()
        self.network = Network(self.agenda, Random(seed), (0.01, 0.1))
        self.arrived: list[tuple[str, int]] = []

    def send(self, source: str, target: str, number: int) -> None:
        self.network.send(source, target, "line", lambda: self.arrived.append((source, number)))

    def run(self, until_s: float = 100.0) -> list[int]:
        while self.agenda.step(until_s):
            pass
        return [number for _, number in self.arrived]


def test_an_agenda_keeps_time_and_order() -> None:
    agenda, seen = Agenda(), []
    for name, at_s in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        agenda.at(at_s, lambda name=name: seen.append((name, agenda.now_s())))
    agenda.at(1.0, lambda: agenda.after(0.5, lambda: seen.append(("later", agenda.now_s()))))
    while agenda.step(10.0):
        pass
    assert seen == [("a", 1.0), ("b", 1.0), ("later", 1.5), ("c", 2.0)]
    assert agenda.now_s() == 10.0
    agenda.at(3.0, lambda: seen.append(("past", agenda.now_s())))
    agenda.step(11.0)
    assert seen[-1] == ("past", 10.0), "the clock never goes back"


def test_a_line_keeps_its_order() -> None:
    lab = Lab()
    for number in range(50):
        lab.send("w0#1", "master", number)
    assert lab.run() == list(range(50))


def test_a_cut_keeps_what_was_on_its_way() -> None:
    lab = Lab()
    lab.send("w0#1", "w1#1", 0)
    lab.network.cut("w0", "w1")
    lab.send("w0#1", "w1#1", 1)
    assert lab.run(1.0) == []
    assert lab.network.cuts() == [("w0", "w1")]
    lab.send("w0#1", "w1#1", 2)
    lab.network.mend("w1", "w0")
    lab.send("w0#1", "w1#1", 3)
    assert lab.run() == [0, 1, 2, 3]


def test_a_cut_of_one_way() -> None:
    lab = Lab()
    lab.network.cut("w0#1", "w1#1", one_way=True)
    lab.send("w0#1", "w1#1", 0)
    lab.send("w1#1", "w0#1", 1)
    assert lab.run(1.0) == [1]
    assert (lab.network.is_cut("w0", "w1"), lab.network.is_cut("w1", "w0")) == (True, False)
    lab.network.mend("w0", "w1")
    assert lab.run() == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_of_the_dead_a_prefix_arrives(seed: int) -> None:
    lab = Lab(seed)
    for number in range(10):
        lab.send("w0#1", "w1#1", number)
        lab.send("w1#1", "w0#1", 100 + number)
    lost = lab.network.forget("w0#1")
    lab.run()
    mine = [number for source, number in lab.arrived if source == "w0#1"]
    assert mine == list(range(10 - lost))
    assert [number for source, number in lab.arrived if source == "w1#1"] == list(range(100, 110))


def test_every_prefix_is_possible() -> None:
    kept = set()
    for seed in range(200):
        lab = Lab(seed)
        for number in range(3):
            lab.send("w0#1", "w1#1", number)
        kept.add(3 - lab.network.forget("w0#1"))
    assert kept == {0, 1, 2, 3}
