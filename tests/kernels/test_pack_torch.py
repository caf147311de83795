"""Pack and unpack on torch tensors: the bits are those of the torch expressions they replace.

`contribution.add_(gradient * weight)` and `flat / n` are what the engine means; the kernels must give the
same 32 bits, NaN payloads apart.
"""

from types import ModuleType

import pytest

from godmw.kernels import dispatch, reference

torch = pytest.importorskip("torch")


@pytest.fixture(params=["reference", "dispatch"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return reference if request.param == "reference" else dispatch


def values(generator: "torch.Generator", *shape: int) -> "torch.Tensor":
    scale = torch.randint(-38, 38, shape, generator=generator).double()
    return (torch.randn(shape, generator=generator).double() * 10**scale).float()


def assert_same_bits(ours: "torch.Tensor", theirs: "torch.Tensor") -> None:
    both_nan = ours.isnan() & theirs.isnan()
    assert ((ours.view(torch.int32) == theirs.view(torch.int32)) | both_nan).all()


@pytest.mark.parametrize("weight", [1.0, 1 / 3, 32.0, 1e-20, -0.1])
def test_the_bits_are_torchs(kernels: ModuleType, weight: float) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = [values(generator, *shape) for shape in [(), (3,), (0, 4), (5, 7), (2, 3, 3, 3), (1001,)]]
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += tensor.numel()
    flat = values(generator, end)
    expected = flat.clone()
    for offset, tensor in zip(offsets, tensors, strict=True):
        expected[offset : offset + tensor.numel()].add_(tensor.flatten() * weight)
    kernels.pack(flat, offsets, tensors, weight, True)
    assert_same_bits(flat, expected)

    kernels.unpack(flat, offsets, tensors, weight)
    assert_same_bits(torch.cat([tensor.flatten() for tensor in tensors]), expected / weight)


def test_gradients_and_parameters_can_be_passed(kernels: ModuleType) -> None:
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(4, 3)).sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    flat = torch.zeros(8)
    kernels.pack(flat, [0, 6], gradients, 0.5, False)
    assert flat.tolist() == [2.0] * 8
    kernels.unpack(flat, [0, 6], [parameter.detach() for parameter in layer.parameters()], 8.0)
    assert layer.bias.tolist() == [0.25, 0.25]


def test_misuse_with_torch_tensors(kernels: ModuleType) -> None:
    flat = torch.zeros(8)
    for tensor, message in [
        (torch.zeros(2, dtype=torch.float64), "not float32"),
        (torch.zeros(2, dtype=torch.bfloat16), "not (float32|in CPU memory)"),
        (torch.zeros(2, 2).t(), "not contiguous"),
        (torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last), "not contiguous"),
        (torch.zeros(2, device="meta"), "not in CPU memory|cannot be read"),
        (flat[:2], "shares memory"),
        (torch.zeros(2).to_sparse(), "cannot be read|not in CPU memory"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernels.pack(flat, [0], [tensor], 1.0, False)
    assert flat.tolist() == [0.0] * 8
