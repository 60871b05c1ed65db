"""Graphs with a state, with writes in place, with views and with random numbers do under
torch.compile what they do in eager torch."""

from __future__ import annotations

import copy
import random
import warnings
from unittest.mock import Mock

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import gossamer
from gossamer.errors import GossamerError
from gossamer.torch.backend import backend, reports
from tests.processes import in_threads
from tests.torch.small import images


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    reports.clear()
    with warnings.catch_warnings(action="ignore"):
        yield
    torch._dynamo.reset()


class Stateful(nn.Module):
    """A module whose forward is a function of the module and its inputs."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh())
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(4, 6))
        self.eval()

    def forward(self, *inputs):
        return self.function(self, *inputs)


def counted(m, x):
    m.count.add_(1)
    return m.layers(x) * m.count


def count_replaced(m, x):
    m.count = m.count + 1
    return m.layers(x) * m.count


def counted_between_graphs(m, x):
    y = m.layers(x)
    torch._dynamo.graph_break()
    m.count.add_(1)
    torch._dynamo.graph_break()
    return m.layers(y) * m.count


def cached(m, x):
    m.cache.copy_(torch.cat([m.cache[1:], m.layers(x)[:1]]))
    return m.cache.sum(0)


def cached_by_index(m, x):
    m.cache[1:2] = m.layers(x)[:1]
    return m.layers(m.cache)


def moving_average(m, x):
    y = m.layers(x)
    m.cache.lerp_(y.mean(0).expand(4, 6), 0.1)
    return y - m.cache.mean(0)


def input_written(m, x):
    x.add_(1)
    return m.layers(x)


def view_of_input_written(m, x):
    x.t()[0].mul_(2)
    return m.layers(x)


def written_by_out(m, x, y):
    torch.add(m.layers(x), 1, out=y)
    return m.layers(y)


def intermediate_written(m, x):
    y = m.layers(x)
    z = y.relu_() + 1
    z += y
    return m.layers(F.relu(z, inplace=True))


def written_where_others_read(m, x):
    y = m.layers(x)
    z = torch.special.bessel_j0(y)
    y.mul_(2)
    return m.layers(y + z) + y


def written_through_a_view(m, x):
    y = m.layers(x) + 1
    y[:, 0] = 0
    y.t()[1].add_(3)
    return m.layers(torch.special.bessel_j0(y))


def view_written_after_a_break(m, x):
    y = m.layers(x) + 1
    z = y.view(-1)
    torch._dynamo.graph_break()
    z.add_(10)
    return y + 0


def view_of_input(m, x):
    return x.view(-1), m.layers(x)


def input_itself(m, x):
    return x, m.layers(x)


def view_of_weight(m, x):
    return m.layers[0].weight.detach()[0], m.layers(x)


def chunks(m, x):
    return m.layers(x).chunk(2, 1)


def views_of_each_other(m, x):
    y = m.layers(x) * 2 + 1
    return {"y": y, "t": y.t(), "first": y[0], "flat": y.flatten()}


def same_twice(m, x):
    y = m.layers(x)
    return y, y


def expanded(m, x):
    y = m.layers(x)[:1]
    return y.expand(4, 6), y


def dropout(m, x):
    return m.layers(F.dropout(m.layers(x), 0.5, True))


def noise(m, x):
    return m.layers(x + torch.rand_like(x)) + torch.randn(6)


def noise_of_a_fixed_size(m, x):
    return m.layers(x + torch.randn(4, 6)).view(2, -1)


def condition(m, x):
    return m.layers(torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 3, (x,)))


def checkpointed(m, x):
    return checkpoint(m.layers, x, use_reentrant=False) + 1


def autocast_within(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.layers(x)


def gradients_within(m, x):
    with torch.enable_grad():
        y = m.layers(x)
    return y * 2


def detached(m, x):
    return m.layers(x).detach(), x.detach()


CASES = [value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__
         and getattr(value, "__code__", None) and value.__code__.co_varnames[:1] == ("m",)]


def called(function, inputs):
    with torch.no_grad():
        return function(*inputs)


def sharing(result, inputs):
    """Returns which of the results and inputs share memory, as pairs of their indices."""
    tensors = [*torch.utils._pytree.tree_leaves(result), *inputs]
    return {(i, j) for i, a in enumerate(tensors) for j, b in enumerate(tensors)
            if i < j and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()}


def assert_equal(ours, torchs, inputs, their_inputs):
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(ours), leaves(torchs), strict=True):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs, their_inputs, rtol=1e-4, atol=1e-5)
    assert sharing(ours, inputs) == sharing(torchs, their_inputs)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_calls_do_what_torch_does(function, training):
    """Outputs, what they share memory with, inputs, buffers and random numbers are torch's."""
    module = Stateful(function).train(training)
    eager = copy.deepcopy(module)
    compiled = torch.compile(module, backend=backend)
    torch.manual_seed(1)
    drawn = [[torch.randn(4, 6) for _ in range(function.__code__.co_argcount - 1)] for _ in "abc"]
    for inputs in drawn:
        theirs = copy.deepcopy(inputs)
        torch.manual_seed(2)
        expected = called(eager, theirs)
        state = torch.get_rng_state()
        torch.manual_seed(2)
        result = called(compiled, inputs)
        assert torch.equal(torch.get_rng_state(), state), "other random numbers were drawn"
        assert_equal(result, expected, inputs, theirs)
        torch.testing.assert_close(module.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)

def set_item(tensor, index, value):
    tensor[index] = value
    return tensor


def program(seed):
    """Returns a function of random steps: some write in place, return views, or stay with torch."""
    draw = random.Random(seed)
    steps = [draw.choice([
        lambda a, b: a.add_(b), lambda a, b: a.mul_(0.5), lambda a, b: F.relu(a, inplace=True),
        lambda a, b: torch.relu_(a), lambda a, b: a.clamp_(-2.0, 2.0), lambda a, b: a + b,
        lambda a, b: torch.special.bessel_j0(a), lambda a, b: a.t().contiguous().view(4, 6),
        lambda a, b: a.view(6, 4).view(4, 6), lambda a, b: torch.tanh(a) * 2, lambda a, b: a[:],
        lambda a, b: a[torch.arange(3, -1, -1)], lambda a, b: a[b.argmax(0)[:4] * 0],
        lambda a, b: a.double().add_(b).float(), lambda a, b: a.copy_(b), lambda a, b: a - b,
        lambda a, b: a.masked_fill_(b > 1, 0.0), lambda a, b: a.sub_(b.mean(0)),
        lambda a, b: set_item(a, 0, b[1]), lambda a, b: set_item(a, torch.tensor([2, 1]), 1.0),
        lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
        lambda a, b: a.unsqueeze_(0).squeeze_(0)]) for _ in range(12)]
    choices = [(draw.randrange(50), draw.randrange(50), draw.random() < 0.3) for _ in steps]

    def function(m, x):
        values = [m.layers(x), x * 2]
        for step, (first, second, again) in zip(steps, choices, strict=True):
            value = step(values[first % len(values)], values[second % len(values)])
            values.append(m.layers(value) if again else value)
        return tuple(values[-3:])

    return function


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_do_what_torch_does(seed):
    test_calls_do_what_torch_does(program(seed), False)


def test_autocast_gives_the_dtypes_of_torch(module):
    compiled = torch.compile(module, backend=backend)
    for enabled in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert called(compiled, [images()]).dtype is called(module, [images()]).dtype


def test_what_torch_computes_has_a_reason():
    for function, reason in ((counted, "it writes 'self.count' in place"),
                             (input_written, "it writes 'inputs[0]' in place"),
                             (condition, "cond is a higher-order operator"),
                             (autocast_within, "_enter_autocast changes a mode of torch")):
        called(torch.compile(Stateful(function), backend=backend), [torch.ones(4, 6)])
        assert reports[-1].taken == 0 and reason in str(reports[-1])
        torch._dynamo.reset()
    called(torch.compile(Stateful(views_of_each_other), backend=backend), [torch.ones(4, 6)])
    assert reports[-1].taken > 3
    assert "its result shares memory with the output" in str(reports[-1])


@pytest.mark.parametrize("function", [counted, input_written, moving_average, dropout, noise],
                         ids=lambda function: function.__name__)
def test_what_optimize_refuses_is_untouched(function):
    module, x = Stateful(function), torch.ones(4, 6)
    state, numbers = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    with pytest.raises(GossamerError):
        gossamer.optimize(module, x)
    assert torch.equal(x, torch.ones(4, 6)) and torch.equal(torch.get_rng_state(), numbers)
    torch.testing.assert_close(module.state_dict(), state, rtol=0, atol=0)


def test_what_fails_in_conversion_is_left_to_torch(module, monkeypatch):
    monkeypatch.setattr("gossamer.torch.backend.optimize",
                        Mock(side_effect=NameError("cond_true_0")))
    compiled = torch.compile(module, backend=backend)
    assert_equal(called(compiled, [images()]), called(module, [images()]), [], [])
    assert reports[-1].taken == 0 and "cond_true_0" in str(reports[-1])


def chain(factor):
    return lambda x: (torch.exp(torch.relu(x) * factor - 1),)


def test_graphs_that_differ_in_a_constant_have_plans_of_their_own():
    x = torch.ones(2, 3)
    modules = [fx.symbolic_trace(chain(factor)) for factor in (2.0, 2.0, 5.0)]
    with torch.no_grad():
        compiled = [backend(module, [x]) for module in modules]
        for module, function in zip(modules, compiled, strict=True):
            torch.testing.assert_close(function(x), module(x))
    assert compiled[0]._plans is compiled[1]._plans is not compiled[2]._plans


def told_not_to_look(factor):
    def op(x):
        return x * factor

    torch._dynamo.allow_in_graph(op)
    return lambda x: torch.relu(op(x)) + 1


def test_functions_that_dynamo_does_not_look_into_are_not_taken_for_one_another():
    compiled = [torch.compile(told_not_to_look(factor), backend=backend) for factor in (2.0, 5.0)]
    assert [called(each, [torch.ones(1)]).item() for each in compiled] == [3, 6]
    assert "the function op may have a state" in str(reports[0])


def test_threads_that_make_the_first_calls_wait_for_one_another():
    module = fx.symbolic_trace(chain(2.0))
    x = torch.ones(2, 3)
    with torch.no_grad():
        function = backend(module, [x])
        for result in in_threads(lambda _: function(x), range(16)):
            torch.testing.assert_close(result, module(x))
    assert len(reports) == 1, "one plan was made several times"
