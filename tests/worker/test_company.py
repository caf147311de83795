"""Several real engines together: equal sums, deaths anywhere in a step, joins anywhere in a script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from godmw.data.table import HOLDER, from_bytes
from godmw.errors import Refused
from tests.fakes.company import BEGIN, FINISH, LAUNCH, Company, Killed


def digits(samples: int = 50) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def build(*, norm: bool = False, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    middle = [nn.BatchNorm1d(8)] if norm else []
    model = nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 2))
    generator = torch.Generator().manual_seed(seed)  # the workers are threads, which share torch's own
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in model.state_dict().values()])


def train(join: Any, worker: str, *, norm: bool = False, **options: Any) -> dict[str, Any]:
    """Two epochs of 50 samples in steps of 16: eight steps."""
    model, optimizer = build(norm=norm)
    job = join(model, optimizer)
    seen: list[tuple[int, float]] = []
    for step in job.steps(digits(), batch_size=16, epochs=2, **options):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
            step.sum(hits=int(model[-1].weight.grad is None), n=len(x))
        optimizer.step()
        seen.append((step.index, step.loss))
        assert step.totals["n"] == step.samples
    return {"weights": weights(model), "seen": seen, "resized": job.world_size}


def alone(**options: Any) -> dict[str, Any]:
    return Company(["a"]).run(lambda join, worker: train(join, worker, **options))["a"]


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(((left - right).abs().max() / right.abs().max()) < 1e-5)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("workers", ["ab", "abc"])
def test_members_end_with_the_same_bits_and_near_one_worker_that_sums_the_same_batches(
    workers: str, norm: bool
) -> None:
    company = Company(list(workers))
    ends = company.run(lambda join, worker: train(join, worker, norm=norm, micro_batch=4))
    first = ends["a"]
    assert all(torch.equal(end["weights"], first["weights"]) for end in ends.values())
    assert all(end["seen"] == first["seen"] for end in ends.values())
    assert [index for index, _ in first["seen"]] == list(range(8))
    if not norm:
        assert close(first["weights"], alone()["weights"])


@pytest.mark.parametrize("place", [BEGIN, LAUNCH, FINISH])
@pytest.mark.parametrize("operation", [0, 3, 7])
def test_a_death_costs_no_step_and_changes_no_sum(place: str, operation: int) -> None:
    company = Company(["a", "b", "c"], kills={"b": (operation, place)})
    ends = company.run(train)
    assert isinstance(ends["b"], Killed)
    assert torch.equal(ends["a"]["weights"], ends["c"]["weights"])
    assert [index for index, _ in ends["a"]["seen"]] == list(range(8))
    assert close(ends["a"]["weights"], alone()["weights"])


def test_survivors_compute_the_dead_ones_shards_and_the_table_says_so() -> None:
    company = Company(["a", "b"], kills={"b": (2, FINISH)})
    company.run(train)
    records = company.controls["a"].records
    assert [record["step"] for record in records] == list(range(8))
    holders = [from_bytes(record["table"])[1:, HOLDER] - 1 for record in records]
    assert set(holders[1].tolist()) == {0, 1}
    assert set(holders[2].tolist()) == {0}


def test_two_deaths_in_one_step() -> None:
    company = Company(["a", "b", "c"], kills={"b": (2, LAUNCH), "c": (2, FINISH)})
    ends = company.run(train)
    assert [index for index, _ in ends["a"]["seen"]] == list(range(8))
    assert close(ends["a"]["weights"], alone()["weights"])


def test_batch_statistics_through_a_death() -> None:
    """Each batch starts from the step's buffers, so which worker computed it does not show."""
    company = Company(["a", "b"], kills={"b": (3, BEGIN)})
    ends = company.run(lambda join, worker: train(join, worker, norm=True, micro_batch=4))
    assert close(ends["a"]["weights"], alone(norm=True, micro_batch=4)["weights"])


@pytest.mark.parametrize("operation", [0, 3, 6])
def test_a_joiner_enters_the_loop_at_the_step_where_the_others_stand(operation: int) -> None:
    company = Company(["a"], joins={"d": operation})
    ends = company.run(train)
    assert torch.equal(ends["a"]["weights"], ends["d"]["weights"])
    assert [index for index, _ in ends["d"]["seen"]] == list(range(operation, 8))
    assert ends["d"]["resized"] == 2
    assert close(ends["a"]["weights"], alone()["weights"])


def test_a_joiner_with_other_initial_weights_takes_the_jobs() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build(seed=ord(worker))
        job = join(model, optimizer)
        for step in job.steps(digits(), batch_size=16, epochs=2):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        return weights(model), optimizer.state_dict()["state"][0]["momentum_buffer"]

    ends = Company(["a"], joins={"d": 4}).run(script)
    assert torch.equal(ends["a"][0], ends["d"][0])
    assert torch.equal(ends["a"][1], ends["d"][1])


def long_script(join: Any, worker: str) -> dict[str, Any]:
    """Operations between loops, a scheduler stepped by the pass, best-so-far and patience in job.state."""
    model, optimizer = build()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    job = join(model, optimizer, scheduler)
    data, bodies, onces = digits(), [], []
    start = job.once("start", lambda: onces.append(worker) or {"by": worker})
    warm = [step.index for step in job.steps(data, batch_size=25, epochs=1) if work(step, model, optimizer)]
    before = job.evaluate(
        lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), data, batch_size=10
    )
    ran = []
    for epoch in job.epochs(5):
        bodies.append(epoch.index)
        ran += [step.index for step in epoch.steps(data, batch_size=25) if work(step, model, optimizer)]
        scheduler.step()
        hits = job.evaluate(
            lambda batch: {"hits": (model(batch[0]).argmax(1) == batch[1]).sum(), "n": len(batch[1])},
            data,
            batch_size=10,
        )
        assert hits["n"] == 50
        job.state["history"] = [*job.state.get("history", []), hits["hits"]]
        if epoch.index == 3:
            job.stop("enough")
    return {
        "weights": weights(model),
        "state": dict(job.state),
        "lr": optimizer.param_groups[0]["lr"],
        "results": (start, before),
        "bodies": bodies,
        "ran": ran,
        "warm": warm,
        "onces": onces,
    }


def work(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    return True


# once 0, warm loop 1-2, evaluate 3, then passes of two steps, an evaluation and an agreement to go on
@pytest.mark.parametrize(
    ("operation", "bodies", "ran"),
    [
        (0, [0, 1, 2, 3], list(range(2, 10))),
        (2, [0, 1, 2, 3], list(range(2, 10))),
        (3, [0, 1, 2, 3], list(range(2, 10))),
        (4, [0, 1, 2, 3], list(range(2, 10))),
        (9, [1, 2, 3], list(range(5, 10))),
        (10, [1, 2, 3], list(range(6, 10))),
        (11, [1, 2, 3], list(range(6, 10))),
        (12, [2, 3], list(range(6, 10))),
    ],
)
def test_a_script_with_passes_joined_anywhere_ends_the_same(
    operation: int, bodies: list[int], ran: list[int]
) -> None:
    ends = Company(["a", "b"], joins={"d": operation}).run(long_script)
    for worker in "bd":
        for name in ("weights", "state", "lr", "results"):
            same = ends["a"][name], ends[worker][name]
            assert torch.equal(*same) if name == "weights" else same[0] == same[1], (worker, name)
    assert ends["a"]["bodies"] == [0, 1, 2, 3]
    assert ends["d"]["bodies"] == bodies
    assert ends["d"]["ran"] == ran
    assert sum(len(end["onces"]) for end in ends.values()) == 1
    assert ends["a"]["lr"] == 0.1 * 0.5**4
    assert len(ends["a"]["state"]["history"]) == 4


def test_plain_epochs_without_passes_replay_what_was_recorded() -> None:
    """The habit `for epoch in range(n)`: a joiner's scheduler has stepped too, and is set right."""

    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        job = join(model, optimizer, scheduler)
        losses = []
        for _ in range(3):
            for step in job.steps(digits(), batch_size=25, epochs=1):
                work(step, model, optimizer)
            losses.append(
                job.evaluate(lambda b: F.cross_entropy(model(b[0]), b[1]).item(), digits(), batch_size=50)
            )
            scheduler.step()
        return weights(model), optimizer.param_groups[0]["lr"], losses

    # loop 0-1, evaluate 2, agree 3, loop 4-5, evaluate 6, agree 7, loop 8-9, evaluate 10
    for operation in (3, 5, 6, 8, 9):
        ends = Company(["a"], joins={"d": operation}).run(script)
        assert torch.equal(ends["a"][0], ends["d"][0])
        assert ends["a"][1:] == ends["d"][1:]
        assert ends["a"][1] == 0.1 * 0.5**3


def test_a_joiner_does_not_enter_at_an_operation_in_a_loops_body() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        totals = []
        for step in job.steps(digits(), batch_size=16, epochs=2):
            work(step, model, optimizer)
            if step.ends_epoch:
                totals.append(job.evaluate(lambda batch: len(batch[0]), digits(), batch_size=7))
        return totals, weights(model), step.index

    # operation 4 is the evaluation after the first pass
    ends = Company(["a", "b"], joins={"d": 4}).run(script)
    assert ends["a"][0] == [50, 50]
    assert ends["d"][0] == [50]
    assert torch.equal(ends["a"][1], ends["d"][1])


def test_an_evaluation_is_finished_by_the_survivors() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        return [
            job.evaluate(
                lambda batch: (batch[0].double().sum().item(), torch.ones(300)), digits(), batch_size=3
            )
            for _ in range(2)
        ]

    ends = Company(["a", "b", "c"], kills={"b": (0, BEGIN), "c": (1, FINISH)}).run(script)
    one = Company(["a"]).run(script)["a"]
    for mine, theirs in zip(ends["a"], one, strict=True):
        assert mine[0] == theirs[0]
        assert mine[1].tolist() == [17.0] * 300


def test_sums_of_any_size_grow_through_a_death() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        found = []
        for step in job.steps(digits(), batch_size=16, epochs=1):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
                step.sum(**{f"class {n} of step {step.index}": 1 for n in range(4 ** (step.index % 3) * 3)})
            optimizer.step()
            found.append(step.totals)
        return found

    ends = Company(["a", "b", "c"], kills={"b": (1, FINISH)}).run(script)
    assert ends["a"] == ends["c"]
    assert [len(totals) for totals in ends["a"]] == [3, 12, 48, 3]
    assert set(ends["a"][0].values()) == {3}  # one batch each of three workers


def test_one_workers_word_stops_all_after_the_same_step() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        for step in job.steps(digits(), batch_size=16, epochs=2):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
                if worker == "b" and step.index == 2:
                    job.stop("b has seen enough")
            optimizer.step()
        return step.index, job.stopped

    ends = Company(["a", "b"]).run(script)
    assert ends == {"a": (2, "asked for by another worker"), "b": (2, "b has seen enough")}


def test_a_word_between_passes_stops_the_passes_of_all() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        bodies = []
        for epoch in job.epochs(6):
            for step in epoch.steps(digits(), batch_size=25):
                work(step, model, optimizer)
            bodies.append(epoch.index)
            if worker == "a" and epoch.index == 1:
                job.stop("out of time")
        return bodies

    assert Company(["a", "b"], joins={"d": 4}).run(script) == {"a": [0, 1], "b": [0, 1], "d": [1]}


@pytest.mark.parametrize("norm", [False, True])
def test_more_members_than_shards(norm: bool) -> None:
    ends = Company(["a", "b", "c"]).run(lambda join, worker: train(join, worker, shards=2, norm=norm))
    assert all(torch.equal(ends["a"]["weights"], end["weights"]) for end in ends.values())
    if not norm:
        assert close(ends["a"]["weights"], alone()["weights"])


@pytest.mark.parametrize("norm", [False, True])
def test_a_step_that_one_member_computes_in_one_batch_is_taken_as_it_is(norm: bool) -> None:
    ends = Company(["a", "b"]).run(lambda join, worker: train(join, worker, shards=1, norm=norm))
    one = alone(shards=1, norm=norm)
    assert torch.equal(ends["a"]["weights"], ends["b"]["weights"])
    assert torch.equal(ends["a"]["weights"], one["weights"])


def test_allreduce_counts_each_member_once_with_the_same_bits() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        value = torch.tensor([0.1, 0.2], dtype=torch.float32) * (ord(worker) - ord("a") + 1)
        return (
            job.allreduce(value),
            job.allreduce(value, op="mean"),
            job.allreduce(3),
            job.allreduce(value.half()),
        )

    ends = Company(["a", "b", "c"], kills={"b": (2, LAUNCH)}).run(script)
    assert ends["a"][2] == 6.0
    for mine, theirs in zip(ends["a"], ends["c"], strict=True):
        assert mine == theirs if isinstance(mine, float) else torch.equal(mine, theirs)
    assert np.allclose(ends["a"][0], [0.6, 1.2])
    assert np.allclose(ends["a"][1], [0.2, 0.4])
    assert ends["a"][3].dtype == torch.float16
    assert np.allclose(ends["a"][3], [0.4, 0.8], atol=1e-3)


def test_a_joiner_with_another_seed_is_refused() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer, seed=7 if worker == "d" else 5)
        for step in job.steps(digits(), batch_size=16, epochs=1):
            work(step, model, optimizer)

    with pytest.raises(Refused, match="seed 5"):
        Company(["a"], joins={"d": 2}).run(script)


def test_a_joiner_whose_script_is_another_is_told_what_differs() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        if worker == "d":
            job.evaluate(lambda batch: 1, digits(), batch_size=5)
        for step in job.steps(digits(), batch_size=16, epochs=1):
            work(step, model, optimizer)

    with pytest.raises(Exception, match="where the others did loop"):
        Company(["a"], joins={"d": 2}).run(script)


def test_on_resize_is_called_at_the_boundary() -> None:
    def script(join: Any, worker: str) -> Any:
        model, optimizer = build()
        job = join(model, optimizer)
        sizes: list[tuple[int, int, int]] = []
        index = 0
        job.on_resize(lambda old, new: sizes.append((index, old, new)))
        for step in job.steps(digits(), batch_size=16, epochs=2):
            work(step, model, optimizer)
            index = step.index + 1
        return sizes

    ends = Company(["a", "b"], kills={"b": (5, FINISH)}, joins={"d": 2}).run(script)
    assert ends["a"] == [(2, 2, 3), (6, 3, 2)]
    assert ends["d"] == [(6, 3, 2)]
