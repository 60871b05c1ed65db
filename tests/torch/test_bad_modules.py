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


@pytest.mark.parametrize("module", [
    nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Sequential(nn.BatchNorm1d(4)),
    nn.Sequential(nn.Linear(4, 4), nn.RReLU())], ids=["dropout", "batch norm", "rrelu"])
def test_training_mode(module):
    text = refused(module, torch.randn(2, 4))
    assert "in training mode; call module.eval() first" in text


def test_training_mode_of_a_function():
    module = Function(lambda x: F.dropout(x * 2)).eval()
    text = refused(module, torch.randn(2, 4), UnsupportedError)
    assert text.startswith("forward computes dropout as in training at ") and (
        "single_modules.py:" in text)


def test_statistics_of_a_batch():
    module = Function(lambda x: F.batch_norm(x * 2, None, None, training=True)).eval()
    text = refused(module, torch.randn(2, 4), UnsupportedError)
    assert text.startswith("forward computes batch_norm as in training at ")


def test_places_of_maxima():
    text = refused(nn.AdaptiveMaxPool2d((2, 3), return_indices=True), torch.randn(2, 4, 5, 5),
                   UnsupportedError)
    assert "adaptive_max_pool2d" in text


def test_random_numbers():
    text = refused(Function(lambda x: x + torch.rand_like(x)).eval(), torch.randn(2, 4),
                   UnsupportedError)
    assert "forward computes rand_like" in text


def test_training_mode_that_changes_nothing_is_taken():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    assert module.training
    assert gossamer.optimize(module, torch.randn(2, 4))(torch.randn(3, 4)).shape == (3, 3)
    assert module.training and module[0].training


def test_forward_that_depends_on_the_data():
    text = refused(Decides().eval(), torch.randn(2, 4), UnsupportedError)
    assert "Decides has no single graph for torch.export: Could not guard on data-dep" in text
    assert "test_bad_modules.py:" in text and "torch.compile(module, backend='gossamer')" in text


def test_written_buffers():
    text = refused(Counts().eval(), torch.randn(2, 4), UnsupportedError)
    assert "forward writes the buffers 'calls'" in text


def test_written_inputs():
    text = refused(Function(lambda x: x.mul_(2) + 1).eval(), torch.randn(2, 4), UnsupportedError)
    assert "forward writes its input 'inputs.0'; change forward to write a copy: x = x" in text


def test_meta_device():
    module = nn.Linear(4, 3, device="meta").eval()
    assert "parameter 'weight' is on the meta device" in refused(module, torch.randn(2, 4))


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


def test_optimised_modules():
    fast = gossamer.optimize(nn.Linear(4, 3).eval(), torch.randn(2, 4))
    assert "module cannot be used with" in refused(fast, torch.randn(2, 4), UnsupportedError)


@pytest.mark.parametrize(("dtype", "part"), [
    (torch.complex64, "complex (torch.complex64)"), (torch.float64, "torch.float64, but gossamer")])
def test_dtypes(dtype, part):
    module = nn.Linear(4, 3, dtype=dtype).eval()
    assert part in refused(module, torch.randn(2, 4, dtype=dtype), UnsupportedError)
    assert part in refused(nn.ReLU().eval(), torch.randn(2, 4, dtype=dtype), UnsupportedError)


def test_sparse_tensors():
    module = nn.Linear(4, 3).eval()
    module.weight = nn.Parameter(module.weight.detach().to_sparse())
    assert "tensor.to_dense()" in refused(module, torch.randn(2, 4), UnsupportedError)


def test_tensors_of_other_classes():
    module = nn.Linear(4, 3).eval()
    x = torch.randn(2, 4).as_subclass(Marked)
    assert "input 'input' is a Marked, a subclass of torch.Tensor" in refused(
        module, x, UnsupportedError)


def test_scripts():
    module = torch.jit.script(nn.Linear(4, 3).eval())
    assert refused(module, torch.randn(2, 4)).startswith("Linear is a module of torch.jit")


def test_hooks():
    module = residual()
    module.block[0].register_forward_hook(lambda module, inputs, output: output)
    text = refused(module, images())
    assert text.startswith("Conv2d 'block.0' has a forward hook")


def test_what_is_no_module():
    assert refused(lambda x: x, torch.randn(2, 4)).startswith("a function is not a torch.nn.Module")


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


def test_reason_of_a_fixed_length():
    module = nn.LSTM(4, 6).eval()
    fast = gossamer.optimize(module, torch.randn(5, 2, 4))
    with pytest.raises(InputError, match=r"the first axis always has the length 5"):
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


def test_versions_of_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(InputError, match=r"PyTorch 2\.3 is too old: expected 2\.4 or later"):
        gossamer.optimize(residual(), images())
    monkeypatch.setattr(torch, "__version__", "2.5.0")
    assert not library.exports_programs()
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git")
    assert library.version() == (2, 10)
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    assert not library.exports_programs()


def test_unsupported_operator_is_named():
    text = refused(Function(lambda x: torch.linalg.eigvalsh(x)).eval(), torch.randn(2, 4, 4),
                   UnsupportedError)
    assert "eigvalsh" in text or "eigh" in text


