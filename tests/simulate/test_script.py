"""The simulated script: which operation is what, and states that tell histories apart."""

import pytest

from godmw.protocol import messages as msg
from godmw.simulate.script import Script, first_state, next_state
from godmw.simulate.text import brief, numbers


def test_steps_and_evaluations() -> None:
    script = Script(steps=7, shards=8, evaluate_every=3)
    assert script.operations == 9
    assert [script.step_of(operation) for operation in range(9)] == [0, 1, 2, -1, 3, 4, 5, -1, 6]
    assert [script.enterable(operation) for operation in range(10)] == [
        True, True, True, False, True, True, True, False, True, True,
    ]  # fmt: skip
    assert [script.shards_of(operation) for operation in (0, 3)] == [8, 4]
    assert Script(steps=5).operations == 5


def test_states_tell_histories_apart() -> None:
    parts = (("w0#1", (0, 1)), ("w1#1", (2,)))
    other = (("w0#1", (0,)), ("w1#1", (1, 2)))
    start = first_state("w0#1")
    assert start != first_state("w1#1")
    assert next_state(start, 0, parts) == next_state(start, 0, parts)
    assert len({next_state(start, 0, parts), next_state(start, 0, other), next_state(start, 1, parts)}) == 3


@pytest.mark.parametrize(
    ("values", "text"), [((), "-"), ((3,), "3"), ((2, 0, 1, 5, 7, 6), "0-2,5-7"), ((0, 2), "0,2")]
)
def test_shards_in_words(values: tuple[int, ...], text: str) -> None:
    assert numbers(values) == text


def test_a_message_in_words_hides_the_token() -> None:
    hello = msg.AgentHello(
        token="secret", host="h", pid=1, slots=2,
        children=(msg.Child(worker="w1", incarnation=2, pid=3, process="T"),),
    )  # fmt: skip
    assert brief(hello) == "AgentHello slots=2 children=[w1#2:T]"
    assert brief(msg.Abort(number=4, reason="w1 is dead")) == 'Abort number=4 reason="w1 is dead"'
