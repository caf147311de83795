"""What a worker brings that the job does not have, in words a person can act on."""

import json

import pytest

from godmw.membership import offer
from godmw.membership import records as rec
from godmw.membership.ending import last_line
from godmw.protocol import messages as msg

SETTINGS = {"batch_size": 8, "samples": 64, "shards": 8, "shuffle": True, "data": "aa"}
JOB = rec.OfferSet("00" * 32, "11" * 32, "22" * 32, 8, 5, json.dumps(SETTINGS) + "; 20 parameters")


def brings(
    settings: dict[str, object] | None = None,
    model: bytes = b"\x11" * 32,
    data: bytes = b"\x22" * 32,
    parameters: int = 20,
    seed: int = -1,
) -> msg.Prepared:
    mine = {**SETTINGS, **(settings or {})}
    digest = b"\x33" * 32 if settings else bytes(32)
    detail = f"{json.dumps(mine)}; {parameters} parameters"
    return msg.Prepared(settings=digest, model=model, data=data, shards=8, seed=seed, detail=detail)


@pytest.mark.parametrize(
    ("brought", "words"),
    [
        (brings(), ""),
        (brings(seed=5), ""),
        (brings(seed=6), "seed 6 was given, the job's is 5"),
        (
            brings({"batch_size": 16, "shards": 16}),
            "this worker's settings are not the job's: batch_size=16 (the job has 8)",
        ),
        (
            brings({"samples": 65, "data": "bb", "shuffle": False}),
            "this worker's settings are not the job's: samples=65 (the job has 64), "
            "shuffle=false (the job has true)",
        ),
        (
            brings({"data": "bb"}),
            "this worker's dataset is not the job's: other samples, or in another order",
        ),
        (
            brings(model=bytes(32), parameters=25),
            "this worker's model is not the job's: it has 25 parameters, the job's has 20 parameters",
        ),
        (
            brings(model=bytes(32)),
            "this worker's model is not the job's: it has 20 parameters, other names, shapes or dtypes",
        ),
        (
            brings(data=bytes(32)),
            "this worker's dataset is not the job's: other samples, or in another order",
        ),
    ],
)
def test_a_difference_in_words(brought: msg.Prepared, words: str) -> None:
    assert offer.difference(JOB, brought) == words


def test_settings_that_are_no_object_are_told_as_they_are() -> None:
    other = msg.Prepared(
        settings=b"\x33" * 32, model=bytes(32), data=b"", shards=0, seed=-1, detail="epochs 3; 20 parameters"
    )
    assert offer.difference(JOB, other) == (
        f"this worker's script does epochs 3; 20 parameters where the job's does {JOB.detail}"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", ""),
        ("Traceback\n  x\nValueError: y\n", "ValueError: y"),
        ("  File x\nerror: the dataset is empty\nhint: look\n", "the dataset is empty"),
    ],
)
def test_last_words_come_down_to_a_line(words: str, line: str) -> None:
    assert last_line(words) == line
