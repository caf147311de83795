"""What all workers do together outside the sum of gradients: evaluate, allreduce, once, agreeing to stop.

Each is one operation of one bucket. Outside a step loop its result is written into the story, so that a
joiner's script, which runs from the top, gets the value that the others got. Sums are added in shard order
from shards that do not depend on the number of workers, so they are the same to the last bit everywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from godmw.data import table as tables
from godmw.data.indices import cut, index_hash
from godmw.errors import UsageError
from godmw.worker import chance, payloads
from godmw.worker.contribution import Expected, GatherContribution, ReduceContribution
from godmw.worker.engine import Engine
from godmw.worker.interface import Operation
from godmw.worker.values import check_size, decode, encode

if TYPE_CHECKING:
    from godmw.data.loader import Source

EVALUATE_SHARDS = 64
REDUCTIONS = ("sum", "mean")


def agree_to_stop(engine: Engine) -> bool:
    """Whether any worker has asked to stop since the last loop or pass."""
    asked = engine.stop_asked is not None
    contribution: ReduceContribution

    def make(settings: int) -> ReduceContribution:
        nonlocal contribution
        contribution = ReduceContribution([], Expected(settings), stop=asked)
        return contribution

    operation = engine.begin("reduce", "stop", 0, make)
    engine.run(operation, contribution, lambda _: None)
    engine.record(operation, "reduce", tables.to_bytes(contribution.summed["table"]))
    if contribution.totals().stop:
        engine.stop()
        return True
    return False


def recorded(engine: Engine, kind: str, what: str) -> bytes | None:
    """What the others got from an operation that this worker's script does now, if they are ahead."""
    engine.stand(f"{kind} {what}", data=b"", shards=0)
    if engine.loop is not None:
        return None
    entry = engine.progress.story.follow(kind, what)
    return None if entry is None else base64.b64decode(entry["result"])


def keep(engine: Engine, kind: str, what: str, result: bytes) -> None:
    """Outside a loop a result is part of the state."""
    if engine.loop is None:
        check_size(result, f"job.{kind}")
        engine.progress.story.add(kind, what, result=base64.b64encode(result).decode())


def gather(
    engine: Engine,
    what: str,
    shards: int,
    compute: Callable[[int], bytes],
    samples_of: Callable[[int], tuple[int, int]] = lambda _: (0, 0),
) -> dict[int, bytes]:
    """Have each of `shards` computed once by somebody; shard -> its bytes, in shard order, for everyone.

    `samples_of(shard)` is how many samples it has and their `index_hash`, for the table.
    """
    contribution: GatherContribution

    def make(settings: int) -> GatherContribution:
        nonlocal contribution
        contribution = GatherContribution(shards, Expected(settings))
        return contribution

    def share(operation: Operation) -> None:
        for shard in operation.todo():
            if not operation.begin([shard]):
                return
            engine.phase("evaluate")
            contribution.pieces[shard] = compute(shard)
            samples, hash = samples_of(shard)
            contribution.table.fill(
                shard, samples=samples, weight=0.0, loss_sum=0.0, hash=hash, rank=operation.rank
            )

    operation = engine.begin("gather", what, shards, make)
    engine.run(operation, contribution, share)
    engine.record(operation, "gather", tables.to_bytes(contribution.summed["table"]))
    engine.phase("script")
    return payloads.from_rows(contribution.summed["pieces"])


# ---- job.once ----


def once(engine: Engine, name: str, fn: Callable[[], Any]) -> Any:
    """Run `fn` once in the job's life, on one worker; its value for everyone, now and later."""
    engine.require_free("job.once")
    engine.stand(f"once {name}", data=b"", shards=0)
    onces = engine.progress.onces
    if name not in onces:

        def compute(_: int) -> bytes:
            with chance.untouched():
                result = encode(fn(), f"job.once({name!r})")
            check_size(result, f"job.once({name!r})")
            return result

        result = gather(engine, f"once {name}", 1, compute)[0]
        engine.progress.onces[name] = base64.b64encode(result).decode()
    return decode(base64.b64decode(engine.progress.onces[name]))


# ---- job.allreduce ----


def allreduce(engine: Engine, value: Any, op: str) -> Any:
    """The sum or mean of every worker's `value`, a tensor or a number, the same bits everywhere."""
    engine.require_free("job.allreduce")
    if op not in REDUCTIONS:
        raise UsageError(f"job.allreduce(op={op!r}) is not built; there is {' and '.join(REDUCTIONS)}")
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise UsageError(f"job.allreduce: {tensor.dtype} is not summed", hint="convert it to a number type")
    if op == "mean" and not tensor.is_floating_point():
        raise UsageError(f"job.allreduce(op='mean') of {tensor.dtype}", hint="convert it to float32")
    what = f"{op} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    known = recorded(engine, "allreduce", what)
    if known is None:
        result = _allreduce(engine, tensor.detach(), op, what)
        keep(engine, "allreduce", what, encode(result, "job.allreduce"))
    else:
        result = decode(known).to(tensor.device)
    return result if isinstance(value, Tensor) else result.item()


def _allreduce(engine: Engine, tensor: Tensor, op: str, what: str) -> Tensor:
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    flat = tensor.to(wide).reshape(-1).clone()
    contribution: ReduceContribution

    def make(settings: int) -> ReduceContribution:
        nonlocal contribution
        contribution = ReduceContribution([flat], Expected(settings))
        return contribution

    operation = engine.begin("reduce", f"allreduce {what}", 0, make)
    engine.run(operation, contribution, lambda _: None)
    engine.record(operation, "reduce", tables.to_bytes(contribution.summed["table"]))
    engine.phase("script")
    total = operation.results[0][0]
    if op == "mean":
        total = total / contribution.totals().members
    return total.reshape(tensor.shape).to(tensor.dtype).clone()


# ---- job.evaluate ----


def evaluate(engine: Engine, fn: Callable[[Any], Any], source: Source) -> Any:
    """The sums of `fn(batch)` over all batches of `source`, each sample once, the same everywhere."""
    engine.require_free("job.evaluate")
    batches = cut(source.length, -(-source.length // source.batch_size))
    what = json.dumps(
        {"samples": source.length, "batches": len(batches), "data": source.fingerprint().hex()[:16]}
    )
    known = recorded(engine, "evaluate", what)
    if known is not None:
        return _result(decode(known))
    groups = cut(len(batches), min(EVALUATE_SHARDS, len(batches)))
    engine.arrive()
    place = (engine.progress.seed, engine.progress.loops, engine.progress.steps, -1)

    def compute(shard: int) -> bytes:
        totals: dict[str, Any] | None = None
        for number in range(*groups[shard]):
            batch = source.fetch(np.arange(*batches[number], dtype=np.int64), place[0])
            chance.seed_all(chance.word(*place, number))
            sums = _as_sums(fn(batch))
            engine.buffers.restore()
            totals = sums if totals is None else _added(totals, sums)
        return encode(totals, "job.evaluate")

    def samples_of(shard: int) -> tuple[int, int]:
        low, high = batches[groups[shard][0]][0], batches[groups[shard][1] - 1][1]
        return high - low, index_hash(np.arange(low, high, dtype=np.int64))

    engine.buffers.open()
    with chance.untouched(), torch.no_grad():
        pieces = gather(engine, f"evaluate {what}", len(groups), compute, samples_of)
    total: dict[str, Any] | None = None
    for piece in pieces.values():
        sums = decode(piece)
        total = sums if total is None else _added(total, sums)
    keep(engine, "evaluate", what, encode(total, "job.evaluate"))
    return _result(total)


def _as_sums(value: Any) -> dict[str, Any]:
    """What `fn` returned as {form, sums}: numbers in full precision, tensors as float64 or int64."""
    if isinstance(value, dict):
        return {"form": "dict", "sums": {str(key): _sum(item) for key, item in value.items()}}
    if isinstance(value, (tuple, list)):
        return {"form": "tuple", "sums": {str(n): _sum(item) for n, item in enumerate(value)}}
    return {"form": "one", "sums": {"0": _sum(value)}}


def _sum(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim():
        return value.detach().cpu().to(torch.float64 if value.is_floating_point() else torch.int64)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return int(value) if isinstance(value, bool) else value
    raise UsageError(
        f"job.evaluate: fn returned a {type(value).__name__}; sums are numbers or tensors",
        hint="return {'correct': int(…), 'loss': float(…)}: sums over the batch, not means",
    )


def _added(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    if left["form"] != right["form"]:
        raise UsageError(
            f"job.evaluate: fn returned a {left['form']} for one batch, a {right['form']} for another"
        )
    sums = dict(left["sums"])
    for key, value in right["sums"].items():
        sums[key] = sums[key] + value if key in sums else value
    return {"form": left["form"], "sums": sums}


def _result(total: dict[str, Any] | None) -> Any:
    assert total is not None
    if total["form"] == "dict":
        return total["sums"]
    values = tuple(total["sums"].values())
    return values if total["form"] == "tuple" else values[0]
