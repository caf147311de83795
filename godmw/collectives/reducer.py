"""Gradients between autograd and the reduction: hooks in, contributions out, p.grad back.

Owns the hooks on the registered parameters, the contribution of the running operation, and p.grad: None
between backward calls, the global mean after `set_grads`. Buckets are handed to `launch` strictly in order,
early ones while backward still runs. The layout changes only between operations. It knows nothing of
membership, shards or transports: the caller gives weights and takes flat tensors.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from godmw.collectives.bucket import BUCKET_BYTES, EDGE_BYTES, BucketLayout, lay_out
from godmw.collectives.contribution import Contribution, item_of
from godmw.errors import GradientMisuse, InternalError

Launch = Callable[[int], None]
View = tuple[int, Tensor, torch.dtype | None]  # parameter, its result, the dtype to cast it to


class Reducer:
    """The gradients of `parameters` [(name, parameter)]; one that is listed twice counts once.

    Life of an operation: `reset`, any number of `backward`, `launch_rest`, `set_grads`; after an abort
    `recall` and `launch_rest` again. `redo`: the contribution changed after a bucket of it had left, so the
    caller reduces again. `broken`: a backward failed half way, so the contribution is worth nothing.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Parameter]],
        *,
        bucket_bytes: int = BUCKET_BYTES,
        edge_bytes: int = EDGE_BYTES,
    ) -> None:
        unique: dict[int, tuple[str, Parameter]] = {}
        for name, parameter in parameters:
            unique.setdefault(id(parameter), (name, parameter))
        self.names = tuple(name for name, _ in unique.values())
        self.parameters = tuple(parameter for _, parameter in unique.values())
        self._sizes = (bucket_bytes, edge_bytes)
        self._hooks: dict[int, Any] = {}
        self._order: list[int] = []
        self._late: set[int] = set()
        self._running = self._open = self._given = False
        self._stamp = [0] * len(self.parameters)
        self._pass = 0
        self._observed: list[int] = []
        self.redo = self.broken = self._keeping = False
        self.kept: dict[int, Tensor] = {}  # parameter -> its gradient, set aside
        self._build()

    # ---- layout ----

    @property
    def buckets(self) -> int:
        return len(self._layout.buckets)

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the trainable parameters in the order that their buckets follow."""
        return tuple(self._order)

    def observed_order(self) -> tuple[int, ...]:
        """Trainable parameters as the last backward made them ready (last, where it did so twice).

        Those it did not touch come at the end, in the order in force.
        """
        seen = tuple(dict.fromkeys(reversed(self._observed)))[::-1]
        ready = [i for i in seen if i in self._home]
        return (*ready, *(i for i in self._order if i not in set(ready)))

    def rebuild(self, order: Sequence[int]) -> None:
        """Lay the buckets out in `order`, which must be the same on every member; between operations only.

        Trainable parameters that `order` does not name come last, frozen ones are passed over.
        """
        if self._open:
            raise InternalError("buckets cannot be laid out anew inside an operation")
        if len(set(order)) != len(order) or not all(0 <= i < len(self.parameters) for i in order):
            raise ValueError(f"{list(order)} is not an order of {len(self.parameters)} parameters")
        self._order = list(order)
        self._build()

    def _build(self) -> None:
        """Buckets, memory and hooks for what is trainable now."""
        self._traits = self._traits_now()
        trainable = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        self._frozen = [i for i, p in enumerate(self.parameters) if not p.requires_grad]
        known = [i for i in self._order if self.parameters[i].requires_grad]
        new = set(trainable) - set(known)
        self._order = known + sorted(new, reverse=True)
        bucket_bytes, edge_bytes = self._sizes
        named = {i: (self.names[i], self.parameters[i]) for i in trainable}
        items = {i: item_of(name, parameter) for i, (name, parameter) in named.items()}
        layout = lay_out(items, self._order, bucket_bytes=bucket_bytes, edge_bytes=edge_bytes)
        self._layout: BucketLayout = layout
        self._memory = Contribution(named, layout)
        self._home = layout.bucket_of()
        count = len(layout.buckets)
        self._pending: list[list[int]] = [[] for _ in range(count)]
        self._left = [0] * count  # parameters still to come in this backward
        self._held = {self._home[i] for i in self._late if i in self._home}
        self._next = 0  # the bucket that leaves next
        self._views: list[tuple[list[Tensor], list[View]]] = [([], []) for _ in range(count)]
        for index in trainable:
            if index not in self._hooks:
                self._hooks[index] = self._hook(index)

    def _traits_now(self) -> list[tuple[bool, torch.dtype]]:
        return [(p.requires_grad, p.dtype) for p in self.parameters]

    def _hook(self, index: int) -> Any:
        mine = weakref.ref(self)

        def ready(_: Tensor) -> None:
            reducer = mine()
            if reducer is not None:
                reducer._ready(index)

        return self.parameters[index].register_post_accumulate_grad_hook(ready)

    def close(self) -> None:
        """Give the parameters back: no hooks, `loss.backward()` is the user's again."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()

    # ---- an operation ----

    def reset(self) -> None:
        """Begin an operation with an empty contribution; the last one's p.grad is dropped.

        Raises GradientMisuse where gradients lie that the engine did not put there.
        """
        if self._given:
            self._release()
        else:
            self._check_no_gradients()
        if self._traits != self._traits_now():
            self._open = False
            self._build()
        self._memory.reset()
        self.kept = {}
        self._next = 0
        self.redo = self.broken = False
        self._open = True

    def backward(
        self,
        loss: Tensor,
        weight: float = 1.0,
        launch: Launch | None = None,
        *,
        keep: bool = False,
        **options: Any,
    ) -> None:
        """Run autograd from `loss` and add weight * gradient; `options` go to `loss.backward`.

        With `launch`, buckets that are complete leave in order while backward runs: give it only for the
        last backward of an assignment. With `keep`, for a batch that is the whole operation of a lone
        member, gradients are set aside as they are, in `kept`, until somebody asks for `parts`; the weight
        is 1 then. An exception of the user's graph passes through.
        """
        self._enter()
        self._keeping = keep
        launch = None if self.redo else launch
        self._weight, self._launch, self._packed = weight, launch, False
        self._pass += 1
        self._observed.clear()
        for number, bucket in enumerate(self._layout.buckets):
            self._left[number] = len(bucket.pieces)
        self._running = True
        try:
            loss.backward(**options)
            if keep:
                self._set_aside()
            for number, pending in enumerate(self._pending):
                if pending:
                    self._pack(number)
        except BaseException:
            self.broken = self.broken or self._packed
            self._drop()
            raise
        finally:
            self._running = self._keeping = False
            self._launch = None

    def _set_aside(self) -> None:
        """Take p.grad away, to where no zero_grad reaches it."""
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is not None:
                known = self.kept.get(index)
                self.kept[index] = gradient if known is None else known.add_(gradient)
                parameter.grad = None

    def _pack_kept(self) -> None:
        """What was set aside is asked for by others after all."""
        kept, self.kept = self.kept, {}
        for number, bucket in enumerate(self._layout.buckets):
            indices = [piece.index for piece in bucket.pieces if piece.index in kept]
            self._memory.add(number, indices, [kept[index] for index in indices], 1.0)

    def _enter(self) -> None:
        if not self._open:
            raise InternalError("backward outside an operation")
        if self.broken:
            raise GradientMisuse(
                "an earlier backward of this step failed half way, so the step's gradients are incomplete",
                hint="let the exception of step.backward() end the script; the step is then done by others",
            )
        self._check_no_gradients()
        if self._next:
            self.redo = True

    def _check_no_gradients(self) -> None:
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                raise GradientMisuse(
                    f"parameter {self.names[index]} already has a gradient that godmw did not put there",
                    hint="gradients belong to the engine inside a step: use step.backward(loss) in place of "
                    "loss.backward(), do not set p.grad, and call zero_grad() after a backward of your own",
                )

    def recall(self) -> None:
        """What has left is void: every bucket leaves again, and batches may be added before it does."""
        self._next = 0
        self.redo = False

    def launch_rest(self, launch: Launch) -> None:
        """Launch, in order, every bucket that has not left."""
        while self._next < self.buckets:
            number, self._next = self._next, self._next + 1
            launch(number)

    def parts(self, bucket: int) -> list[Tensor]:
        """The bucket's contribution as 1-D tensors, one a dtype: zeros where no gradient was produced."""
        if self.kept:
            self._pack_kept()
        return self._memory.parts(bucket)

    def touched(self) -> Tensor:
        """int64 [parameters]: 1 where this operation's contribution has a gradient. Merged by sum."""
        return torch.tensor(self._touched(), dtype=torch.int64)

    def _touched(self) -> list[int]:
        filled, kept = self._memory.filled, self.kept
        return [int(index in kept or filled(index)) for index in range(len(self.parameters))]

    def set_grads(
        self, results: Sequence[Sequence[Tensor]], divisor: float = 1.0, touched: Tensor | None = None
    ) -> None:
        """p.grad = result / divisor, None where `touched` (the summed counts; default: mine) is zero.

        `results[bucket][part]` have the shapes of `parts` and belong to the caller's generation alone: they
        are divided in place and p.grad views them (halves get a copy in their dtype) until the next `reset`.
        They may be the parts themselves when the world has one member.
        """
        for index in self._frozen:
            if self.parameters[index].grad is not None:
                raise self._thawed(index)
        counts = self._touched() if touched is None else touched.tolist()
        for number, parts in enumerate(results):
            if divisor != 1.0:
                for part in parts:
                    # a scalar divisor on a GPU would be turned into a multiplication
                    part.div_(divisor if part.device.type == "cpu" else part.new_tensor(divisor))
            for index, view, cast in self._result_views(number, list(parts)):
                if counts[index] > 0:
                    self.parameters[index].grad = view if cast is None else view.to(cast)
        self._given, self._open = True, False

    def give_kept(self) -> None:
        """p.grad = what was set aside: the operation was this one batch and had no other member."""
        for index, gradient in self.kept.items():
            self.parameters[index].grad = gradient
        self.kept = {}
        self._given, self._open = True, False

    def _result_views(self, number: int, parts: list[Tensor]) -> list[View]:
        """The gradients that one bucket's results hold; kept while the same buffers come back."""
        known, views = self._views[number]
        if len(known) != len(parts) or any(a is not b for a, b in zip(known, parts, strict=True)):
            views = []
            for piece in self._layout.buckets[number].pieces:
                home = self._memory.homes[piece.index]
                view = home.view(parts[piece.part])
                views.append((piece.index, view, None if view.dtype == home.dtype else home.dtype))
            self._views[number] = (parts, views)
        return views

    def _release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        self._given = False

    # ---- called by autograd ----

    def _ready(self, index: int) -> None:
        """The parameter's gradient is in p.grad."""
        if not self._running:
            raise GradientMisuse(
                f"loss.backward() reached parameter {self.names[index]}, whose gradients godmw sums",
                hint="call step.backward(loss) inside `for batch in step`; for a gradient of your own use "
                "torch.autograd.grad, which leaves p.grad alone",
            )
        number = self._home.get(index)
        if number is None:
            raise self._thawed(index)
        self._observed.append(index)
        if self._keeping:
            return
        if self._stamp[index] == self._pass:
            self._accumulated_again(index, number)
            return
        self._stamp[index] = self._pass
        self._pending[number].append(index)
        self._left[number] -= 1
        if not self._left[number]:
            self._pack(number)
            if self._launch is not None and number == self._next:
                self._launch_ready(self._launch)

    def _thawed(self, index: int) -> GradientMisuse:
        return GradientMisuse(
            f"parameter {self.names[index]} was made trainable inside a step",
            hint="change requires_grad between steps, the same way on every worker",
        )

    def _accumulated_again(self, index: int, number: int) -> None:
        """Re-entrant checkpointing of a shared parameter: autograd finishes it once for each segment."""
        if self._left[number]:
            return  # not packed yet: autograd has added the two in p.grad
        self._pending[number].append(index)
        self._pack(number)
        self._late.add(index)
        self._held.add(number)
        self.redo = self.redo or number < self._next

    def _launch_ready(self, launch: Launch) -> None:
        while self._next < self.buckets and not self._left[self._next] and self._next not in self._held:
            number, self._next = self._next, self._next + 1
            launch(number)

    def _pack(self, number: int) -> None:
        """Move the pending gradients of a bucket into the contribution."""
        pending = self._pending[number]
        gradients = []
        for index in pending:
            parameter = self.parameters[index]
            gradient = parameter.grad
            if gradient is None:
                raise GradientMisuse(
                    f"the gradient of parameter {self.names[index]} was taken away while backward ran",
                    hint="no other hook may clear p.grad: step the optimizer after the loop over the step",
                )
            gradients.append(gradient)
            parameter.grad = None
        self._packed = True
        self._memory.add(number, pending, gradients, self._weight)
        pending.clear()

    def _drop(self) -> None:
        """Forget what a failed backward left behind."""
        for pending in self._pending:
            pending.clear()
        for parameter in self.parameters:
            parameter.grad = None
