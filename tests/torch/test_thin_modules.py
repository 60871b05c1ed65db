"""Thin networks as users of PyTorch write them: their zeros and signs are found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import gossamer
from gossamer.torch.optimize import in_dtype
from tests.ops.conv2d.sparse.sparse_weights import AWKWARD, EXTREME
from tests.tolerances import normalised_error
from tests.torch.small import images, residual, same


class SignWithGradient(torch.autograd.Function):
    """The sign with a straight-through estimator, by torch's own sign."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class ChosenSign(torch.autograd.Function):
    """The sign with a straight-through estimator, by a choice of 1 and -1."""

    @staticmethod
    def forward(ctx, x):
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def detached_sign(x):
    """The sign with a straight-through estimator, without a function of its own."""
    return (torch.where(x >= 0, 1.0, -1.0) - x).detach() + x


class BinaryConv(nn.Module):
    """A convolution of signs with signs, each weight times the scale of its channel."""

    def __init__(self, sign):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32, 3, 3))
        self.sign = sign

    def forward(self, x):
        scale = self.weight.abs().mean((1, 2, 3), keepdim=True)
        return F.conv2d(self.sign(x), self.sign(self.weight) * scale)


class OneInFour(nn.Module):
    """A parametrisation that keeps the larger two of each four weights, as 2:4 sparsity does."""

    def forward(self, weight):
        fours = weight.reshape(-1, 4)
        kept = fours.abs().argsort(1).argsort(1) >= 2
        return (fours * kept).reshape(weight.shape)


def density(module, x):
    """Returns the share of weights of an optimised module that are no zeros, and checks it."""
    fast = gossamer.optimize(module, x)
    module.eval()
    assert same(fast, module, x)
    found = [row["density"] for row in fast.report(len(x)).rows if row["density"] is not None]
    return sum(found) / len(found)


@pytest.mark.parametrize("removed", [False, True], ids=["parametrised", "removed"])
def test_pruned_by_torch(module, removed):
    for part in (module.block[0], module.block[2]):
        prune.l1_unstructured(part, "weight", 0.5)
        prune.random_unstructured(part, "bias", 0.5)
        prune.l1_unstructured(part, "weight", 0.5)
    # a call under gradients leaves weights that cannot be copied as they are
    module(images())
    if removed:
        for part in (module.block[0], module.block[2]):
            prune.remove(part, "weight")
            prune.remove(part, "bias")
    only_blocks = nn.Sequential(nn.Conv2d(3, 8, 1), module.block).eval()
    found = gossamer.optimize(only_blocks, images()).report(2).rows
    densities = [row["density"] for row in found if row["density"] is not None]
    assert densities[1:] == pytest.approx([0.25, 0.25], abs=0.01)
    assert density(module, images()) < 0.7
    assert hasattr(module.block[0], "weight_orig") is not removed, "the module was changed"


@pytest.mark.parametrize("kind", [*AWKWARD, *EXTREME, "no weight left"])
def test_zeros_that_are_spread_unevenly(kind):
    torch.manual_seed(0)
    window = nn.Conv2d(6, 10, 3, stride=(1, 2), padding=(2, 0), dilation=(1, 2), groups=2)
    module = nn.Sequential(window, nn.ReLU(), nn.Conv2d(10, 7, 1)).eval()
    weight = window.weight.detach().numpy()
    if kind == "no weight left":
        weight[...] = 0
    else:
        (AWKWARD | EXTREME)[kind](weight, np.random.default_rng(1))
    x = torch.randn(2, 6, 7, 9)
    fast = gossamer.optimize(module, x)
    with torch.no_grad():
        y, expected = fast(x).numpy(), module.double()(x.double()).numpy()
    assert normalised_error(y, expected) < 1e-5


def test_sparsity_of_two_in_four():
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    for part in (module[0], module[2]):
        parametrize.register_parametrization(part, "weight", OneInFour())
    assert density(module, torch.randn(2, 32)) == pytest.approx(0.5)


def test_sparsifier_of_torch_ao():
    pruning = pytest.importorskip("torch.ao.pruning")
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    sparsifier = pruning.WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4),
                                              zeros_per_block=2)
    sparsifier.prepare(module, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])
    sparsifier.step()
    assert density(module, torch.randn(2, 32)) == pytest.approx(0.5)
    sparsifier.squash_mask()
    assert density(module, torch.randn(2, 32)) == pytest.approx(0.5)


@pytest.mark.parametrize("sign", [SignWithGradient.apply, ChosenSign.apply],
                         ids=["sign", "choice"])
def test_signs_are_computed_on_bits(sign):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 32, 3), BinaryConv(sign)).eval()
    x = torch.randn(2, 3, 14, 14)
    fast = gossamer.optimize(module, x)
    forms = [row["form"] for row in fast.report(2).rows if row["form"] is not None]
    assert [form["could_be_packed"] for form in forms] == [False, True]


def test_detached_signs_are_computed():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 32, 3), BinaryConv(detached_sign)).eval()
    x = torch.randn(2, 3, 14, 14)
    fast = gossamer.optimize(module, x)
    assert same(fast, module, x)


@pytest.mark.parametrize("normalise", [
    nn.utils.weight_norm, nn.utils.spectral_norm, parametrizations.weight_norm,
    parametrizations.spectral_norm, parametrizations.orthogonal],
    ids=["weight norm", "spectral norm", "parametrised weight norm", "parametrised spectral norm",
         "orthogonal"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_normalised_weights_are_constants(normalise):
    torch.manual_seed(0)
    module = nn.Sequential(normalise(nn.Linear(12, 8)), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(4, 12)
    module(x)
    module.eval()
    fast = gossamer.optimize(module, x)
    assert same(fast, module, x)
    assert {row["op"] for row in fast.report(4).rows} == {"gemm"}
    with torch.no_grad():
        module[2].bias.add_(1)
    fast.update(module)
    assert same(fast, module, x)


def test_sparsity_of_torchao():
    sparsity = pytest.importorskip("torchao.sparsity")
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    sparsity.apply_fake_sparsity(module)
    assert density(module, torch.randn(2, 32)) == pytest.approx(0.5)


def of_integers(module, x):
    """Returns the layers of an optimised module that are sums of integers, and checks it."""
    fast = gossamer.optimize(module, x)
    x = images(64, seed=3)
    ours = fast(x).numpy()
    with torch.no_grad():
        theirs = module(x).numpy()
        exact = in_dtype(module, torch.float64, lambda module, x: [module(*x)], [x])[0].numpy()
    assert normalised_error(ours, exact) <= max(1e-6, 2 * normalised_error(theirs, exact))
    # where a number is rounded to the other integer, outputs are a step apart: few are
    assert np.mean(np.abs(ours - exact) > 1e-5 * np.abs(exact).max()) < 0.03
    layers = [name for row in fast.report(len(x)).rows for name in row["layers"]]
    return [name for name in layers if name.endswith(".sums")]


class Rounded(nn.Module):
    """A module that rounds its input to the integers of a range."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 2


def operators(x):
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    functions = torch.ops.quantized_decomposed
    integers = functions.quantize_per_tensor.default(x, 0.1, 5, 0, 15, torch.uint8)
    return functions.dequantize_per_tensor.default(integers, 0.1, 5, 0, 15, torch.uint8)


@pytest.mark.parametrize("function", [
    lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
    lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([3, 0, -2], dtype=torch.int32), 1, -8, 7),
    lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, quant_min=-8, quant_max=7),
    operators], ids=["tensor", "channels", "keywords", "operators"])
def test_integers_of_a_narrow_range(function):
    module = Rounded(function).eval()
    fast = gossamer.optimize(module, images() / 10)
    x = images(5, seed=4) * 3
    torch.testing.assert_close(fast(x), module(x), rtol=0, atol=1e-6)
    exact = in_dtype(module, torch.float64, lambda module, x: [module(*x)], [x])[0]
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), module(x), rtol=0, atol=1e-6)


def test_quantised_by_pt2e():
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    xnnpack = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer")
    program = torch.export.export(residual(), (images(),),
                                  dynamic_shapes=({0: torch.export.Dim("batch")},))
    quantiser = xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True))
    module = pt2e.prepare_pt2e(program.module(check_guards=False), quantiser)
    for seed in range(4):
        module(images(seed=seed))
    assert len(of_integers(pt2e.convert_pt2e(module), images(3))) == 4


def test_quantised_by_torch_ao():
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    quantization = pytest.importorskip("torch.ao.quantization")
    module = fx.prepare_fx(residual(), quantization.get_default_qconfig_mapping("x86"),
                           (images(),))
    for seed in range(4):
        module(images(seed=seed))
    module = fx._convert_to_reference_decomposed_fx(module)
    assert len(of_integers(module, images(3))) == 4


class FakeQuantised(nn.Module):
    """A layer whose input and weights are rounded to 8 bits, as in training for them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127)
        weight = torch.fake_quantize_per_tensor_affine(self.layer.weight, 0.002, 0, -128, 127)
        return F.conv2d(x, weight, self.layer.bias)


def test_fake_quantised():
    torch.manual_seed(0)
    assert len(of_integers(FakeQuantised().eval(), images(3))) == 1


def test_signs_of_brevitas():
    qnn = pytest.importorskip("brevitas.nn")
    quantisers = pytest.importorskip("brevitas.quant")
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        qnn.QuantIdentity(act_quant=quantisers.SignedBinaryActPerTensorConst),
        qnn.QuantConv2d(32, 32, 3, bias=False,
                        weight_quant=quantisers.SignedBinaryWeightPerTensorConst)).eval()
    x = torch.randn(2, 3, 14, 14)
    fast = gossamer.optimize(module, x)
    assert same(fast, module, x)
    forms = [row["form"] for row in fast.report(2).rows if row["form"] is not None]
    assert [form["could_be_packed"] for form in forms] == [False, True]
