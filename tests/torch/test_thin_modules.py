"""Thin networks as users of PyTorch write them: their zeros and signs are found."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import gossamer
from tests.tolerances import normalised_error
from tests.torch.small import images, residual


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
    with torch.no_grad():
        assert normalised_error(fast(x).numpy(), module(x).numpy()) < 1e-5
    found = [row["density"] for row in fast.report(len(x)).rows if row["density"] is not None]
    return sum(found) / len(found)


@pytest.mark.parametrize("removed", [False, True], ids=["parametrised", "removed"])
def test_pruned_by_torch(removed):
    module = residual()
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
    with torch.no_grad():
        assert normalised_error(fast(x).numpy(), module(x).numpy()) < 1e-5


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
    with torch.no_grad():
        assert normalised_error(fast(x).numpy(), module(x).numpy()) < 1e-5
    assert {row["op"] for row in fast.report(4).rows} == {"gemm"}
    with torch.no_grad():
        module[2].bias.add_(1)
    fast.update(module)
    with torch.no_grad():
        assert normalised_error(fast(x).numpy(), module(x).numpy()) < 1e-5
