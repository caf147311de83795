"""State collected from one job and applied to another leaves them equal, bit by bit, and training alike."""

import hashlib
import struct
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from godmw.checkpoint.snapshot import Entry, Snapshot
from godmw.checkpoint.state import StateRegistry, weights_sha256
from godmw.errors import UsageError

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
    "adam-tensor-lr": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.01)),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.01),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.01),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
    "lbfgs": lambda ps: torch.optim.LBFGS(ps, lr=0.1, max_iter=2),
}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)


def train(model: nn.Module, optimizer: Any, steps: int, schedulers: tuple[Any, ...] = ()) -> None:
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step)).to(dtype)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).float().square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        for scheduler in schedulers:
            scheduler.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fresh_worker_goes_on_with_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    old, new = net(dtype), net(dtype)
    optimizers = [OPTIMIZERS[kind](model.parameters()) for model in (old, new)]
    registries = [StateRegistry([m, o]) for m, o in zip((old, new), optimizers, strict=True)]
    train(old, optimizers[0], 3)
    snapshot = registries[0].collect()
    assert registries[0].digest() == snapshot.digest != registries[1].digest()
    registries[1].apply(snapshot)
    assert registries[1].digest() == snapshot.digest
    assert registries[1].tensor_digests() == list(snapshot.digests)
    for model, optimizer in zip((old, new), optimizers, strict=True):
        train(model, optimizer, 2)
    assert registries[0].digest() == registries[1].digest()
    assert weights_sha256(old) == weights_sha256(new)


def test_state_stays_in_the_dtype_it_was_sent_in() -> None:
    models = [net(torch.bfloat16), net(torch.bfloat16)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    weight = models[0][0].weight
    optimizers[0].state[weight]["master"] = torch.full((8, 3), 1 / 3, dtype=torch.float32)
    registries = [StateRegistry(pair) for pair in zip(models, optimizers, strict=True)]
    registries[1].apply(registries[0].collect())
    kept = optimizers[1].state[models[1][0].weight]["master"]
    assert kept.dtype == torch.float32
    assert kept[0, 0].item() == struct.unpack("f", struct.pack("f", 1 / 3))[0]


def test_live_tensors_stay_the_tensors_they_were() -> None:
    models = [net(), net()]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in models]
    for steps, model, optimizer in zip((3, 1), models, optimizers, strict=True):
        train(model, optimizer, steps)
    registries = [StateRegistry(pair) for pair in zip(models, optimizers, strict=True)]

    def tensors() -> tuple[Tensor, ...]:
        weight = models[1][0].weight
        return weight, optimizers[1].state[weight]["exp_avg"], optimizers[1].state[weight]["step"]

    before = tensors()
    snapshot = registries[0].collect()
    registries[1].apply(snapshot)
    after = tensors()
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert after[2].item() == 3.0
    train(models[1], optimizers[1], 1)
    assert snapshot.digest == registries[0].digest()  # a snapshot is private


def test_what_the_optimizer_no_longer_has_is_removed() -> None:
    models = [net(), net()]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    train(models[1], optimizers[1], 2)
    optimizers[1].param_groups[0]["stale"] = 1
    registries = [StateRegistry(pair) for pair in zip(models, optimizers, strict=True)]
    registries[1].apply(registries[0].collect())
    assert len(optimizers[1].state) == 0
    assert "stale" not in optimizers[1].param_groups[0]
    assert registries[0].digest() == registries[1].digest()


def test_the_order_in_which_state_was_made_does_not_show() -> None:
    models = [net(), net()]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.0, momentum=0.9) for m in models]
    for reverse, model, optimizer in zip((False, True), models, optimizers, strict=True):
        for parameter in sorted(model.parameters(), key=lambda p: p.numel(), reverse=reverse):
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    digests = {StateRegistry(pair).digest() for pair in zip(models, optimizers, strict=True)}
    assert len(digests) == 1


def test_schedulers_scaler_and_extra_state_travel() -> None:
    def build() -> tuple[StateRegistry, Any, dict[str, Any]]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        warm = lr_scheduler.LinearLR(optimizer, total_iters=3)
        steps = lr_scheduler.MultiStepLR(optimizer, [4, 5])
        schedule = lr_scheduler.SequentialLR(optimizer, [warm, steps], milestones=[3])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        job_state: dict[str, Any] = {}
        named = {"optimizer": optimizer, "schedule": schedule, "scaler": scaler}
        registry = StateRegistry([model], named, {"job.state": job_state})
        return registry, (model, optimizer, schedule, scaler), job_state

    old, (model, optimizer, schedule, scaler), job_state = build()
    train(model, optimizer, 4, (schedule,))
    scaler.load_state_dict({**scaler.state_dict(), "scale": 4.0})
    job_state.update(best=0.5, order=["b", "a"], ema=torch.tensor([1.0, 2.0]), z=1, a=2)
    new, (_, other, plan, other_scaler), other_state = build()
    new.apply(old.collect())
    assert new.digest() == old.digest()
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert plan.last_epoch == 4
    assert other_scaler.get_scale() == 4.0
    assert list(other_state) == ["best", "order", "ema", "z", "a"]
    assert other_state["ema"].tolist() == [1.0, 2.0]


def test_the_trainable_mask_travels() -> None:
    models = [net(), net()]
    models[0][0].weight.requires_grad_(False)
    registries = [StateRegistry([m]) for m in models]
    assert registries[0].digest() != registries[1].digest()
    assert registries[0].layout_digest() != registries[1].layout_digest()
    assert registries[0].layout_digest(trainable=False) == registries[1].layout_digest(trainable=False)
    registries[1].apply(registries[0].collect())
    assert not models[1][0].weight.requires_grad
    assert registries[0].digest() == registries[1].digest()


class Positioned(nn.Linear):
    """A module with state that is no tensor."""

    position = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_extra_state_and_tied_weights_travel() -> None:
    models = [Positioned(4, 4), Positioned(4, 4)]
    for model in models:
        model.add_module("tied", nn.Linear(4, 4, bias=False))
        model.tied.weight = model.weight
    models[0].position = 7
    registries = [StateRegistry([m]) for m in models]
    snapshot = registries[0].collect()
    assert [entry.path for entry in snapshot.entries] == ["Positioned/weight", "Positioned/bias"]
    registries[1].apply(snapshot)
    assert models[1].position == 7
    assert models[1].tied.weight is models[1].weight
    assert registries[0].digest() == registries[1].digest()


def test_every_kind_of_change_shows_in_the_digest() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    registry = StateRegistry([model, optimizer])
    seen = {registry.digest()}
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nextafter(model[0].weight[0, 0], torch.tensor(9.0))
    seen.add(registry.digest())
    optimizer.param_groups[0]["lr"] = 0.1 + 1e-17 + 2e-17
    seen.add(registry.digest())
    model[1].running_var[0] = -0.0
    seen.add(registry.digest())
    model[1].running_var[0] = 0.0
    seen.add(registry.digest())
    assert len(seen) == 5


# ---- refusals ----


def test_a_snapshot_of_another_model_changes_nothing() -> None:
    here = net()
    optimizer = torch.optim.AdamW(here.parameters())
    registry = StateRegistry([here, optimizer])
    before = registry.digest()
    other = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    theirs = StateRegistry([other, torch.optim.AdamW(other.parameters())])
    with pytest.raises(UsageError, match=r"Sequential/3\.weight is float32 \(2, 8\) here, float32 \(3, 8\)"):
        registry.apply(theirs.collect())
    split = [{"params": here[0].parameters()}, {"params": here[3].parameters()}]
    groups = StateRegistry([net(), torch.optim.AdamW(split)])
    with pytest.raises(UsageError, match=r"AdamW has parameter groups of \[6\] parameters.* has \[2, 2\]"):
        registry.apply(groups.collect())
    with pytest.raises(UsageError, match="is of Linear; registered here: Sequential, AdamW"):
        registry.apply(StateRegistry([nn.Linear(1, 1)]).collect())
    assert registry.digest() == before


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    registry = StateRegistry([net()])
    for meta in (b"", b"\x90", b"\x93\x01\x02\x03", b"\xc1"):
        with pytest.raises(ValueError, match=r"."):
            registry.apply(Snapshot(meta, [], []))


def test_layout_differences_are_described() -> None:
    base = StateRegistry([net()])
    assert base.describe_difference(base.layout()) is None
    wide = StateRegistry([nn.Sequential(nn.Linear(3, 9))])
    assert base.describe_difference(wide.layout()) == (
        "Sequential/0.weight is float32 [8, 3] trainable here, float32 [9, 3] trainable there"
    )
    half = StateRegistry([net(torch.bfloat16)])
    assert "float32 [8, 3] trainable here, bfloat16" in (base.describe_difference(half.layout()) or "")
    short = StateRegistry([nn.Sequential(nn.Linear(3, 8))])
    assert base.describe_difference(short.layout()) == "Sequential/1.weight is only here"
    frozen = net()
    frozen[0].bias.requires_grad_(False)
    assert base.describe_difference(StateRegistry([frozen]).layout()) == (
        "Sequential/0.bias is float32 [8] trainable here, float32 [8] frozen there"
    )


def test_objects_that_cannot_be_state_are_named() -> None:
    with pytest.raises(UsageError, match="is a list, which has no state_dict"):
        StateRegistry([[1, 2]])
    model = net()
    with pytest.raises(UsageError, match="registered twice"):
        StateRegistry([model], {"again": model})
    with pytest.raises(UsageError, match="'model'"):
        StateRegistry([], {"model": net()}, {"model": {}})
    with pytest.raises(UsageError, match=r"job\.state/fn is a builtin"):
        StateRegistry([], {}, {"job.state": {"fn": print}}).collect()
    with pytest.raises(UsageError, match=r"0\.weight has no shape yet"):
        StateRegistry([nn.Sequential(nn.LazyLinear(2))]).layout()


def test_positional_objects_are_named_by_their_class() -> None:
    registry = StateRegistry([nn.Linear(1, 1), nn.Linear(1, 1)], {"head": nn.Linear(1, 1)})
    assert list(registry.objects) == ["Linear", "Linear2", "head"]
    assert [name for name, _ in registry.modules()] == ["Linear", "Linear2", "head"]


def test_the_budget_holds_what_optimizers_keep_and_little_more() -> None:
    model = nn.Linear(1000, 1000)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    registry = StateRegistry([model, optimizer])
    assert registry.collect().nbytes < registry.budget_bytes() < 150_000_000


# ---- the public hash of weights ----


def test_weights_sha256_is_the_published_format() -> None:
    model = nn.Module()
    model.register_parameter("b", nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
    model.register_buffer("a", torch.tensor(5))
    model.register_buffer("c", torch.tensor([1.0], dtype=torch.bfloat16))
    expected = hashlib.sha256(
        b"a\0int64\0\0"
        + struct.pack("<q", 5)
        + b"b\0float32\x002,2\0"
        + struct.pack("<4f", 1, 2, 3, 4)
        + b"c\0bfloat16\x001\0"
        + b"\x80\x3f"
    )
    assert weights_sha256(model) == expected.hexdigest()
    model.b.data = model.b.data.t().contiguous().t()  # other strides, the same tensor
    assert weights_sha256(model) == expected.hexdigest()


def test_entries_know_their_size() -> None:
    assert Entry.of("x", torch.zeros(3, 4, dtype=torch.float16)).nbytes == 24
    assert Entry("x", "float32", (2**40, 2**40)).nbytes == 2**82
    assert Entry.of("x", torch.tensor(True)).nbytes == 1
