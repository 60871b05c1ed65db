"""Modules and examples that cannot be optimised are refused with what is wrong and what to do."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import InputError, UnsupportedError
from gossamer.torch import captured, library
from tests.torch.single_modules import Function
from tests.torch.small import images, residual


class Counts(nn.Module):
    """A module whose forward writes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Decides(nn.Module):
    """A module whose forward depends on the data."""

    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


def refused(module, example, kind=InputError):
    with pytest.raises(kind) as error:
        gossamer.optimize(module, example)
    return str(error.value)


def sparse_linear():
    module = nn.Linear(4, 3).eval()
    module.weight = nn.Parameter(module.weight.detach().to_sparse())
    return module


def hooked():
    module = residual()
    module.block[0].register_forward_hook(lambda module, inputs, output: output)
    return module


ROWS = torch.randn(2, 4)
TRAINING = "in training mode; call module.eval() first"


@pytest.mark.parametrize(("module", "example", "kind", "parts"), [
    (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), ROWS, InputError, [TRAINING]),
    (nn.Sequential(nn.BatchNorm1d(4)), ROWS, InputError, [TRAINING]),
    (nn.Sequential(nn.Linear(4, 4), nn.RReLU()), ROWS, InputError, [TRAINING]),
    (Function(lambda x: F.dropout(x * 2)), ROWS, UnsupportedError,
     ["forward computes dropout as in training at ", "single_modules.py:"]),
    (Function(lambda x: F.batch_norm(x * 2, None, None, training=True)), ROWS, UnsupportedError,
     ["forward computes batch_norm as in training at "]),
    (nn.AdaptiveMaxPool2d((2, 3), return_indices=True), torch.randn(2, 4, 5, 5), UnsupportedError,
     ["adaptive_max_pool2d"]),
    (Function(lambda x: x + torch.rand_like(x)), ROWS, UnsupportedError,
     ["forward computes rand_like"]),
    (Function(lambda x: torch.linalg.eigvalsh(x)), torch.randn(2, 4, 4), UnsupportedError, ["eig"]),
    (Decides(), ROWS, UnsupportedError,
     ["Decides has no single graph for torch.export: Could not guard on data-dep",
      "test_bad_modules.py:", "torch.compile(module, backend='gossamer')"]),
    (Counts(), ROWS, UnsupportedError, ["forward writes the buffers 'calls'"]),
    (Function(lambda x: x.mul_(2) + 1), ROWS, UnsupportedError,
     ["forward writes its input 'inputs.0'; change forward to write a copy: x = x"]),
    (nn.Linear(4, 3, device="meta"), ROWS, InputError,
     ["parameter 'weight' is on the meta device"]),
    (sparse_linear(), ROWS, UnsupportedError, ["tensor.to_dense()"]),
    (nn.Linear(4, 3), ROWS.as_subclass(Marked), UnsupportedError,
     ["input 'input' is a Marked, a subclass of torch.Tensor"]),
    (nn.Linear(4, 3), torch.nested.nested_tensor([ROWS, ROWS[:1]], layout=torch.jagged),
     UnsupportedError, ["input 'input' is a nested tensor; make it dense by tensor.to_padded_ten"]),
    (nn.LSTM(4, 6, proj_size=3, bidirectional=True), torch.randn(5, 2, 4), UnsupportedError,
     ["LSTM cannot be exported: torch's exporter wrote a network that is not valid: "]),
    (hooked(), images(), InputError, ["Conv2d 'block.0' has a forward hook"]),
    (lambda x: x, ROWS, InputError, ["a function is not a torch.nn.Module"]),
], ids=["dropout", "batch norm", "rrelu", "dropout of a function", "statistics of a batch",
        "places of maxima", "random numbers", "unsupported operator", "data decides",
        "written buffers", "written inputs", "meta device", "sparse tensors", "another class",
        "nested tensors", "network that is not valid", "hook", "no module"])
def test_what_cannot_be_optimised(module, example, kind, parts):
    if parts != [TRAINING] and isinstance(module, nn.Module):
        module.eval()
    text = refused(module, example, kind)
    assert all(part in text for part in parts)


def test_training_mode_that_changes_nothing_is_taken():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    assert module.training
    assert gossamer.optimize(module, torch.randn(2, 4))(torch.randn(3, 4)).shape == (3, 3)
    assert module.training and module[0].training


def test_two_devices(monkeypatch):
    # the meta device stands for a second one, which not every machine has
    monkeypatch.setattr(captured, "_check_kind", lambda name, tensor: None)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, device="meta")).eval()
    assert refused(module, torch.randn(2, 4)) == (
        "parameter '0.weight' is on cpu and parameter '1.weight' on meta; move the module to one "
        "device: module.to('cpu')")


def test_weights_that_are_made_in_the_first_call():
    module = nn.Sequential(nn.LazyLinear(3)).eval()
    assert refused(module, torch.randn(2, 4)) == (
        "LazyLinear '0' is lazy: its weights are created by the first call; call the module once")
    module(torch.randn(2, 4))
    assert gossamer.optimize(module, torch.randn(2, 4))(torch.randn(3, 4)).shape == (3, 3)


def test_scripts_and_optimised_modules():
    module = nn.Linear(4, 3).eval()
    assert "Linear is a module of torch.jit" in refused(torch.jit.script(module), ROWS)
    fast = gossamer.optimize(module, ROWS)
    assert "module cannot be used with" in refused(fast, ROWS, UnsupportedError)


@pytest.mark.parametrize(("dtype", "part"), [
    (torch.complex64, "complex (torch.complex64)"), (torch.float64, "torch.float64, but gossamer")])
def test_dtypes(dtype, part):
    module = nn.Linear(4, 3, dtype=dtype).eval()
    assert part in refused(module, torch.randn(2, 4, dtype=dtype), UnsupportedError)
    assert part in refused(nn.ReLU().eval(), torch.randn(2, 4, dtype=dtype), UnsupportedError)


@pytest.mark.parametrize(("example", "part"), [
    (None, "example_inputs is missing"),
    (images(0), "input 'x' has batch 0"),
    ((images(), images()), "do not fit forward(x"),
    ({"y": images()}, "do not fit forward(x"),
    (3, "the example has no torch.Tensor"),
    (images().numpy(), "such as torch.from_numpy(array) for a NumPy array"),
], ids=["none", "batch 0", "too many", "unknown name", "no tensor", "array"])
def test_examples(example, part):
    assert part in refused(residual(), example)


def test_call_of_another_shape_or_device():
    fast = gossamer.optimize(residual(), images())
    with pytest.raises(InputError, match=r"input 'x' has shape 2x3x9x9, expected Nx3x12x12"):
        fast(torch.randn(2, 3, 9, 9))
    with pytest.raises(InputError, match=r"input 'x' is on meta, but the module is on cpu"):
        fast(torch.randn(2, 3, 12, 12, device="meta"))


def test_batch_that_forward_fixes_is_the_only_one():
    module = Function(lambda x, weight: x.reshape(2, -1) @ weight, weight=torch.randn(12, 3)).eval()
    fast = gossamer.optimize(module, torch.randn(2, 3, 4))
    assert fast(torch.randn(2, 3, 4)).shape == (2, 3)
    with pytest.raises(InputError, match=r"shape \(3, 3, 4\), expected \(2, 3, 4\): the batch"):
        fast(torch.randn(3, 3, 4))


@pytest.mark.parametrize("forward", [
    lambda x: x.mean((2, 3), keepdim=True).squeeze(), lambda x: x.squeeze(0),
    lambda x: x.mean((2, 3), keepdim=True).squeeze((1, -1, -2)), lambda x: x.squeeze(1),
    lambda x: x * 2 if x.shape[0] > 1 else x, lambda x: (x + 1, x.shape[0]),
    lambda x: (x + 1, x.shape, x.numel() / 2), lambda x: x / x.shape[0],
])
@pytest.mark.parametrize("example", [1, 2])
def test_a_forward_that_depends_on_the_batch_is_torchs_or_refused(forward, example):
    module = Function(lambda x, weight: forward(x * weight), weight=torch.randn(3, 1, 1)).eval()
    fast = gossamer.optimize(module, torch.randn(example, 3, 2, 2))
    computed = []
    for batch in (1, 2, 3):
        x = torch.randn(batch, 3, 2, 2)
        try:
            result = fast(x)
        except InputError as error:
            assert "batch" in str(error)
            continue
        computed.append(batch)
        with torch.no_grad():
            expected = module(x)
        torch.testing.assert_close(result, expected)
    assert example in computed


def test_reason_of_a_fixed_length():
    module = nn.LSTM(4, 6).eval()
    fast = gossamer.optimize(module, torch.randn(5, 2, 4))
    with pytest.raises(InputError, match=r"the first dimension always has the size 5"):
        fast(torch.randn(7, 2, 4))


def test_tied_weights_are_one():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    module[2].weight = module[0].weight
    fast = gossamer.optimize(module, torch.randn(2, 4))
    with torch.no_grad():
        module[0].weight.mul_(2)
    fast.update(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
    module[2].weight = nn.Parameter(module[0].weight.detach().clone())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        module[2].weight.add_(1)
    for call in (lambda: fast(x), lambda: fast.update(module)):
        with pytest.raises(InputError, match=r"'2\.weight' and '0\.weight' were one tensor when"):
            call()


def test_versions_of_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(InputError, match=r"PyTorch 2\.5 is too old: expected 2\.6 or later"):
        gossamer.optimize(residual(), images())
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git")
    assert library.version() == (2, 10)
    monkeypatch.setattr(library, "find_spec", lambda name: name == "torch" or None)
    with pytest.raises(InputError, match=r"onnxscript, .* is not installed; pip install"):
        gossamer.optimize(residual(), images())
