"""New weights: update takes them, changes are noticed, and choices are kept."""

from __future__ import annotations

import random
import re

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.utils import prune

import gossamer
from gossamer.errors import GossamerWarning, InputError
from gossamer.plan.api import with_weights
from gossamer.torch.backend import backend
from gossamer.torch.weights import CALLS, Watch, Weights
from tests.torch.small import images, residual, same


@pytest.mark.parametrize("effort", [None, "quick"])
def test_update_takes_other_weights(module, effort, own_cache):
    fast = gossamer.optimize(module, images(), effort=effort)
    taken = [row["algorithm"] for row in fast.report(2).rows]
    for other in (residual(seed=5), residual(seed=6)):
        fast.update(other)
        assert same(fast, other, images(2))
        assert [row["algorithm"] for row in fast.report(2).rows] == taken
    if effort is not None:
        assert fast.plan.tuner is None, "something may be measured again"


def test_update_refuses_other_modules():
    fast = gossamer.optimize(residual(), images())
    with pytest.raises(InputError, match=r"the module has no weight 'stem\.weight'"):
        fast.update(nn.Sequential(nn.Conv2d(3, 8, 3)).eval())
    wider = residual()
    wider.head = nn.Linear(8, 7).eval()
    with pytest.raises(InputError, match=r"'head.weight' is torch.float32 of shape \(7, 8\), exp"):
        fast.update(wider)
    with pytest.raises(InputError, match=r"an OrderedDict is not a torch\.nn\.Module; give a"):
        fast.update(residual().state_dict())
    with pytest.raises(InputError, match=r"module.eval\(\) first"):
        fast.update(residual().train())
    assert same(fast, residual(), images()), "a refused update has changed the module"


def test_code_for_zeros_refuses_other_zeros():
    def pruned(seed):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)).eval()
        with torch.no_grad():
            module[0].weight.mul_(torch.rand(8, 8, 3, 3, generator=torch.Generator().manual_seed(
                seed)) > 0.9)
        return module

    x = torch.randn(2, 8, 10, 10)
    plan = gossamer.optimize(pruned(0), x).plan
    plan.program(2)
    taken = next(step for step in plan.program(2).steps if step.layer.op == "conv2d")
    graphs = {seed: gossamer.optimize(pruned(seed), x).plan.graph for seed in (0, 1)}
    if not taken.algorithm.dense:
        with pytest.raises(InputError, match="with other zeros or values"):
            with_weights(plan, graphs[1])
    same_zeros = with_weights(plan, graphs[0])
    torch.testing.assert_close(same_zeros(x), plan(x))


def weights_replaced(module):
    module.load_state_dict(residual(seed=9).state_dict())


def trained(module):
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(images(4)).square().mean().backward()
    optimizer.step()
    module.eval()


CHANGES = (lambda module: None, weights_replaced, trained,
           lambda module: setattr(module.head, "bias", nn.Parameter(torch.ones(5))),
           lambda module: setattr(module.head.weight, "data", torch.ones(5, 8)),
           lambda module: module.norm.running_mean.add_(1))


@pytest.mark.parametrize("way", ["optimize", "backend"])
def test_changes_are_followed(module, way):
    """At once; those that torch does not count, within some calls."""
    torch._dynamo.reset()
    fast = gossamer.optimize(module, images()) if way == "optimize" else torch.compile(
        module, backend=backend)
    for number, change in enumerate(CHANGES):
        change(module)
        assert same(fast, module, images(2)), number
    module.head.weight.data.mul_(3)
    for _ in range(CALLS):
        same(fast, module, images())
    assert same(fast, module, images())


def recalibrated(module):
    """Changes the statistics of batch norm, which torch does not count."""
    module.train()
    with torch.no_grad():
        module(3 * images(4))
    module.eval()


OTHERS = (
    recalibrated,
    lambda module: setattr(module, "head", nn.Linear(8, 5)),
    lambda module: setattr(module, "head", nn.Linear(8, 7)),
    lambda module: setattr(module.stem, "bias", nn.Parameter(torch.ones(8))),
    lambda module: setattr(module.head, "bias", None),
    lambda module: module.block.__setitem__(1, nn.Tanh()),
    lambda module: module.block.append(nn.Tanh()),
    lambda module: module.block.__delitem__(1),
    lambda module: nn.utils.parametrizations.weight_norm(module.block[0]).weight.numel(),
    lambda module: prune.l1_unstructured(module.head, "weight", amount=0.5))


@pytest.mark.parametrize("order", range(4))
def test_changes_are_followed_or_are_errors(module, order):
    """No call computes with old weights in silence, whatever changes happen one after another."""
    fast = gossamer.optimize(module, images())
    for change in random.Random(order).sample(OTHERS, len(OTHERS)):
        change(module)
        try:
            assert same(fast, module, images())
        except InputError as error:
            assert re.search("^layer '.*was (added|replaced|removed)|the module has (a|no) weight",
                             str(error))
            fast = gossamer.optimize(module.eval(), images())


def test_a_replaced_layer_is_named(module):
    fast = gossamer.optimize(module, images())
    module.block[2] = nn.Conv2d(8, 8, 3, padding=1)
    with pytest.raises(InputError, match=r"^layer 'block\.2' of the module was replaced after .*; "
                                         r"optimise it again, call update\(module\) if"):
        fast(images())
    fast.update(module)
    assert same(fast, module, images())


def test_constants_of_forward_stay():
    """Tensors that are no parameters or buffers are constants, and do not keep weights from
    changing."""
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.mask, self.more = torch.tensor([1.0, 0, 1, 0, 1, 1]), [torch.randn(6)]

        def forward(self, x):
            y = self.layer(x) * self.mask + self.more[0]
            return y * torch.tensor([1.0, 2, 3, 4, 5, 6])

    module, x = Masked().eval(), torch.randn(3, 6)
    fast = gossamer.optimize(module, x)
    for _ in range(2):
        with torch.no_grad():
            module.layer.weight.add_(1)
        assert same(fast, module, x)


def test_weights_that_are_not_followed_are_those_of_update(module):
    fast = gossamer.optimize(module, images(), follow=False)
    weights_replaced(module)
    assert same(fast, residual(), images())
    fast.update(module)
    assert same(fast, residual(seed=9), images())


def test_weights_that_change_in_each_call_are_left_to_torch(module):
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend)
    with pytest.warns(GossamerWarning, match="its weights change from call to call"):
        for _ in range(12):
            assert same(compiled, module, images())
            with torch.no_grad():
                module.head.bias.add_(1)
    assert same(compiled, module, images())


def watched(module):
    """Returns a function that tells the first change of a module's weights since now."""
    weights = Weights(module)
    watch = Watch(weights.paths, weights.now())
    return lambda: watch.change(weights.now())


def test_what_a_watch_notices(module):
    change = watched(module)
    assert change() == ""
    module.norm.running_mean.add_(1)
    assert change() == "'norm.running_mean' was changed in place"
    change = watched(module)
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())
    assert change() == "'head.weight' was replaced by another tensor"
    change = watched(module)
    module.stem.weight.data = module.stem.weight.detach().clone()
    assert change() == "'stem.weight' was changed in place"
    module.norm.num_batches_tracked.add_(1)
    assert watched(module)() == ""


@pytest.mark.parametrize("write", [
    lambda tensor: tensor.data.fill_(2), lambda tensor: tensor.numpy(force=True).fill(1),
    lambda tensor: tensor.data.flatten()[::3].fill_(float("nan"))])
def test_a_watch_compares_elements_now_and_then(write):
    module = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20)).half()
    with torch.inference_mode():
        module[1].running_mean = torch.zeros(20)
    for tensor in (module[0].weight, module[1].running_mean):
        change = watched(module)
        assert {change() for _ in range(2 * CALLS)} == {""}
        with torch.inference_mode():
            write(tensor)
        assert [change() for _ in range(CALLS)][-1] == (
            "weights were written without a change of their version counters")


def test_weights_that_change_while_they_are_read_are_followed(module):
    fast = gossamer.optimize(module, images())
    replan = fast._replan

    def changed_after(plan, weights):
        new = replan(plan, weights)
        fast._replan = replan
        with torch.no_grad():
            module.head.bias.add_(1)
        return new

    fast._replan = changed_after
    fast.update(module)
    assert same(fast, module, images())
