"""New weights: update takes them, changes are noticed, and choices are kept."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.plan.new_weights import with_weights
from gossamer.torch.watch import CALLS, Watch
from tests.tolerances import normalised_error
from tests.torch.small import images, residual


def same(fast, module, x):
    with torch.no_grad():
        return normalised_error(fast(x).numpy(), module(x).numpy()) < 1e-5


@pytest.mark.parametrize("effort", [None, "quick"])
def test_update_takes_other_weights(effort, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    module = residual()
    fast = gossamer.optimize(module, images(), effort=effort)
    taken = [row["algorithm"] for row in fast.report(2).rows]
    for other in (residual(seed=5), residual(seed=6)):
        fast.update(other)
        assert same(fast, other, images(2))
        assert [row["algorithm"] for row in fast.report(2).rows] == taken
    if effort is not None:
        assert not fast.plan.report(2).tuning, "something was measured again"


def test_update_refuses_other_modules():
    fast = gossamer.optimize(residual(), images())
    with pytest.raises(InputError, match=r"the module has no 'stem\.weight'"):
        fast.update(nn.Sequential(nn.Conv2d(3, 8, 3)).eval())
    wider = residual()
    wider.head = nn.Linear(8, 7).eval()
    with pytest.raises(InputError, match=r"'head.weight' is torch.float32 of shape \(7, 8\), exp"):
        fast.update(wider)
    with pytest.raises(InputError, match=r"a OrderedDict is no torch\.nn\.Module; give a module"):
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


def test_changes_in_place_are_noticed_within_100_calls():
    module = residual()
    fast = gossamer.optimize(module, images())
    with torch.no_grad():
        module.block[0].bias.add_(1)
    with pytest.raises(InputError, match=r"'block\.0\.bias' was changed in place; call fast\.upda"):
        for _ in range(CALLS):
            fast(images(1))
    fast.update(module)
    for _ in range(CALLS + 1):
        fast(images(1))
    assert same(fast, module, images())


def test_changes_are_followed():
    module = residual()
    fast = gossamer.optimize(module, images(), follow=True)
    module.load_state_dict(residual(seed=9).state_dict())
    for _ in range(CALLS):
        fast(images(1))
    assert same(fast, residual(seed=9), images())


def test_what_a_watch_notices():
    module = residual()
    watch = Watch(module)
    assert watch.change() == ""
    module.norm.running_mean.add_(1)
    assert watch.change() == "'norm.running_mean' was changed in place"
    watch = Watch(module)
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())
    assert watch.change() == "another tensor has taken the place of 'head.weight'"
    with torch.inference_mode():
        module.head.bias = nn.Parameter(torch.zeros(5), requires_grad=False)
    watch = Watch(module)
    assert watch.change() == ""
    del module
    assert watch.change() == ""
