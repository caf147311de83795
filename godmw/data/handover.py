"""How objects pass between a training process and its own loader processes: one file in memory an object.

The object is serialised by multiprocessing's reduction into an anonymous file (memfd), array contents
beside it at aligned offsets; only the descriptor travels, over a socket pair made for the two.  The
receiver maps the file privately, so a batch's tensors are views of it: nothing is copied, no name appears
anywhere, and nothing is left when either side dies at any instant.  A sender never waits for a slow
reader.  Both ends are processes that this one forked: nothing from a network or a disk is ever given to
`receive`.
"""

from __future__ import annotations

import io
import os
import socket
import struct
import tempfile
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGN = 64
_WORD = struct.Struct("<Q")


def _rebuild(dtype: torch.dtype, shape: torch.Size, requires_grad: bool, content: np.ndarray) -> Tensor:
    return torch.from_numpy(content).view(dtype).view(shape).requires_grad_(requires_grad)


def _is_plain(tensor: Tensor) -> bool:
    """Whether values, dtype and shape are all there is to it."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
    )


class _Pickler(ForkingPickler):
    """Tensors as bytes beside the stream; torch's own reduction would keep a thread and sockets for them."""

    def __init__(self, file: io.BytesIO, beside: list[Any]) -> None:
        super().__init__(file, 5, True, beside.append)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if not _is_plain(value):
                return value.__reduce_ex__(2)
            flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
            return _rebuild, (value.dtype, value.shape, value.requires_grad, flat.numpy())
        if isinstance(value, torch.UntypedStorage):
            return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(value),)
        if isinstance(value, torch.TypedStorage):
            return value.__reduce__()
        return NotImplemented


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("godmw", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def pack(value: Any) -> int:
    """A new descriptor of a file that holds `value`.  Raises whatever serialising it raises."""
    stream, beside = io.BytesIO(), list[Any]()
    _Pickler(stream, beside).dump(value)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in beside)]
    head = b"".join(_WORD.pack(size) for size in (len(parts), *(part.nbytes for part in parts)))
    fd = _new_file()
    try:
        offset = _padded(len(head))
        os.ftruncate(fd, offset + sum(_padded(part.nbytes) for part in parts))
        _write(fd, memoryview(head), 0)
        for part in parts:
            _write(fd, part.cast("B"), offset)
            offset += _padded(part.nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def unpack(fd: int) -> Any:
    """The object in the file `fd`, which is closed.  Its arrays and tensors are views of a private map of
    it.
    """
    try:
        # mmap.mmap would keep a descriptor for as long as any part of a batch lives
        whole = torch.from_file(f"/dev/fd/{fd}", shared=False, size=os.fstat(fd).st_size, dtype=torch.uint8)
        view: memoryview = whole.numpy().data
    finally:
        os.close(fd)
    count = _WORD.unpack_from(view, 0)[0]
    sizes = struct.unpack_from(f"<{count}Q", view, _WORD.size)
    parts, offset = [], _padded(_WORD.size * (count + 1))
    for size in sizes:
        parts.append(view[offset : offset + size])
        offset += _padded(size)
    return ForkingPickler.loads(parts[0], buffers=parts[1:])


def send_file(channel: socket.socket, fd: int) -> None:
    socket.send_fds(channel, [b"\1"], [fd])


def send(channel: socket.socket, value: Any) -> None:
    """Hand `value` over.  Raises OSError when nobody is left to take it."""
    fd = pack(value)
    try:
        send_file(channel, fd)
    finally:
        os.close(fd)


def send_end(channel: socket.socket) -> None:
    """The other side's next `receive` raises EOFError, even if a third process holds a copy of our end."""
    channel.send(b"\0")


def receive(channel: socket.socket) -> Any:
    """The next object; waits for it.  Raises EOFError when there will be none."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, 1, 1)
    except ConnectionResetError:
        raise EOFError from None
    if not data or not fds:
        raise EOFError
    return unpack(fds[0])
