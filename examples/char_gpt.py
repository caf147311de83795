"""A small GPT over characters, on any text file; by default on the sources of Python's standard library.

    python examples/char_gpt.py --steps 200
    godmw run --workers 2 examples/char_gpt.py --steps 200 --text mine.txt

The loss is a mean over characters, all windows have the same length, so the default weights are right.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import godmw

TEXT_LIMIT = 1_000_000


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Sample i: bytes [i * length, (i + 1) * length) as int64 [length], and the same one further."""

    def __init__(self, text: bytes, length: int) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.length = length

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.bytes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """Pre-norm attention and MLP, [n, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [n, heads, length, width / heads]
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """int64 [n, length] -> scores [n, length, 256]."""

    def __init__(self, length: int, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.token(x) + self.place(places))))


def standard_library() -> bytes:
    """The sources of Python's own modules, in the order of their names."""
    text = b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_LIMIT:
            break
    return text[:TEXT_LIMIT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file (default: Python's standard library)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--batch-size", type=int, default=16, help="windows of a step, of all workers together"
    )
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    text = arguments.text.read_bytes() if arguments.text else standard_library()
    data = Windows(text, arguments.length)
    model = GPT(arguments.length).to(godmw.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job = godmw.join(model, optimizer)

    for step in job.steps(data, batch_size=arguments.batch_size, steps=arguments.steps):
        for x, y in step:
            scores = model(x.to(godmw.device()))
            step.backward(F.cross_entropy(scores.flatten(0, 1), y.to(godmw.device()).flatten()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if job.is_leader and (step.index % 20 == 0 or step.index + 1 == arguments.steps):
            print(f"step {step.index:4}  loss {step.loss:.4f}  workers {job.world_size}", flush=True)


if __name__ == "__main__":
    main()
