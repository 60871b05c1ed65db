"""New weights: update takes them, changes are noticed, and choices are kept."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import gossamer
from gossamer.errors import GossamerWarning, InputError
from gossamer.plan.api import with_weights
from gossamer.torch.backend import backend
from gossamer.torch.weights import CALLS, Watch, Weights
from tests.torch.small import images, residual, same


@pytest.mark.parametrize("effort", [None, "quick"])
def test_update_takes_other_weights(module, effort, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
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
