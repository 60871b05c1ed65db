"""Attention as one kernel of NVIDIA GPUs, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import Variant
from gossamer.ops.fused.attention import AttentionMma
from gossamer.ops.fused.problem import FusionProblem, Source, reference
from gossamer.ops.weights import Weights
from gossamer.plan.fusion import find_fusions
from gossamer.plan.plan import Plan
from tests.ops.fused.layers import Layers, operand
from tests.ops.harness import check_variants, random_inputs, random_weights, run_variant
from tests.ops.recording import RecordingDevice, check_kernels_build
from tests.simulated.recognised import attention
from tests.tolerances import normalised_error, tolerance

ALGORITHM = AttentionMma()
check = partial(check_variants, ALGORITHM)


def of_tokens(batch: int, tokens: int, heads: int, dim: int, factor: float = 0.3) -> FusionProblem:
    """Queries, keys and values of one product, as exporters write scaled_dot_product_attention."""
    p = Layers()
    whole = p.reshape(p.input((batch * tokens, 3 * heads * dim)), batch, tokens, 3, heads, dim)
    moved = p.transpose(whole, 2, 0, 3, 1, 4)
    q, k, v = (p.reshape(p.slice(moved, 0, index, index + 1), batch, heads, tokens, dim)
               for index in range(3))
    keys = p.transpose(p.reshape(k, batch * heads, tokens, dim), 0, 2, 1)
    keys = p.compute(operand("x") * 0.5, x=p.reshape(keys, batch, heads, dim, tokens))
    result = p.product(p.softmax(p.product(p.compute(operand("x") * factor, x=q), keys)), v)
    return p.fusion(p.reshape(p.transpose(result, 0, 2, 1, 3), batch * tokens, heads * dim))


def of_windows(batch: int, windows: int, tokens: int, heads: int, dim: int) -> FusionProblem:
    """Windows of an image, with a bias for each head and a mask for each window."""
    p = Layers()
    whole = p.reshape(p.input((batch * windows * tokens, 3 * heads * dim)),
                      batch * windows, tokens, 3, heads, dim)
    moved = p.transpose(whole, 2, 0, 3, 1, 4)
    q, k, v = (p.reshape(p.slice(moved, 0, index, index + 1), batch * windows, heads, tokens, dim)
               for index in range(3))
    scores = p.product(p.compute(operand("x") * 0.4, x=q), k, (1,))
    scores = p.compute(operand("x") + "bias", x=scores, bias=(1, heads, tokens, tokens))
    scores = p.reshape(scores, batch, windows, heads, tokens, tokens)
    scores = p.compute(operand("x") + "mask", x=scores, mask=(1, windows, 1, tokens, tokens))
    scores = p.reshape(scores, batch * windows, heads, tokens, tokens)
    result = p.transpose(p.product(p.softmax(scores), v), 0, 2, 1, 3)
    return p.fusion(p.reshape(result, batch * windows, tokens, heads * dim))


def of_images(batch: int, pixels: tuple[int, int], heads: int, dim: int, value_dim: int,
              queries: int) -> FusionProblem:
    """Queries, keys and values of three convolutions, and a scaled product with a bias."""
    p = Layers()
    q = p.reshape(p.input((batch, heads * dim, 1, queries)), batch, heads, dim, queries)
    keys = pixels[0] * pixels[1]
    k = p.reshape(p.input((batch, heads * dim, *pixels)), batch, heads, dim, keys)
    v = p.reshape(p.input((batch, heads * value_dim, *pixels)), batch, heads, value_dim, keys)
    scores = p.compute(operand("x") * 0.25 + "bias", x=p.product(q, k, (0,)),
                       bias=(1, heads, queries, keys))
    result = p.transpose(p.product(p.softmax(scores), v, (1,)), 0, 1, 3, 2)
    return p.fusion(p.reshape(result, batch, heads * value_dim, 1, queries))


def of_heads(batch: int, queries: int, keys: int, heads: int, dim: int,
             value_dim: int) -> FusionProblem:
    """Queries of their own; keys and values beside each other for each head."""
    p = Layers()
    q = p.transpose(p.input((batch, queries, heads, dim)), 0, 2, 1, 3)
    both = p.reshape(p.input((batch, keys, heads * (dim + value_dim))), batch, keys, heads,
                     dim + value_dim)
    k = p.transpose(p.slice(both, 3, 0, dim), 0, 2, 3, 1)
    v = p.transpose(p.slice(both, 3, dim, dim + value_dim), 0, 2, 1, 3)
    result = p.product(p.softmax(p.product(q, k)), v)
    return p.fusion(p.reshape(p.transpose(result, 0, 2, 1, 3), batch, queries,
                               heads * value_dim))


def of_values_first(batch: int, pixels: int, dim: int, value_dim: int) -> FusionProblem:
    """The result is v.T @ weights.T, which is transposed, of channels of one convolution."""
    p = Layers()
    whole = p.input((batch, 2 * dim + value_dim, pixels, 1))
    q, k, v = (p.reshape(p.slice(whole, 1, start, end), batch, end - start, pixels)
               for start, end in ((0, dim), (dim, 2 * dim), (2 * dim, 2 * dim + value_dim)))
    weights = p.softmax(p.compute(operand("x") * 0.3, x=p.product(q, k, (0,))))
    return p.fusion(p.reshape(p.product(v, weights, (1,)), batch, value_dim, pixels, 1))


PROBLEMS = {
    "tokens": of_tokens(2, 21, 3, 16),
    "odd tokens": of_tokens(1, 50, 2, 12),
    "long": of_tokens(1, 197, 1, 64),
    "steep": of_tokens(1, 90, 2, 12, -3.0),
    "windows": of_windows(2, 3, 9, 2, 8),
    "images": of_images(2, (5, 4), 2, 16, 24, 7),
    "heads": of_heads(2, 5, 40, 3, 10, 14),
    "values first": of_values_first(2, 21, 8, 12),
}


def check_masks(device: Device) -> None:
    """Check rows of which some or all keys are masked, by the lowest float or by -inf."""
    problem = PROBLEMS["images"]
    name, shape = next(iter(problem.weight_shapes.items()))
    mask = np.zeros(shape, np.float32)
    mask[:, 0, 0], mask[:, 0, 1, 3:] = (np.finfo(np.float32).min,) * 2
    mask[:, 0, 2, :-1] = -np.inf
    variants = list(ALGORITHM.variants(problem, device))
    chosen = [variants[0], variants[-1]]
    check(problem, device, chosen, {name: mask})
    mask[:, 1, 4] = -np.inf
    check(problem, device, chosen, {name: mask})


def check_large_scores(device: Device) -> None:
    """Check scores whose differences are far beyond the range of exponentials."""
    problem, random = PROBLEMS["heads"], np.random.default_rng(0)
    inputs = [np.float32(np.float16(random.uniform(-6e4, 6e4, x.shape))) for x in problem.inputs]
    (expected,), weights = reference(problem, inputs, {}), Weights({}, device, "a test")
    for variant in list(ALGORITHM.variants(problem, device))[::4]:
        (result,) = run_variant(ALGORITHM, problem, variant, device, weights, inputs)
        assert normalised_error(result, expected) <= tolerance("matmul", "fp16")


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_attention_on_cuda(cuda: Device, name: str) -> None:
    check(PROBLEMS[name], cuda)


def test_masks_and_large_scores_on_cuda(cuda: Device) -> None:
    check_masks(cuda)
    check_large_scores(cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, [of_tokens(8, 197, 3, 64), of_heads(1, 49, 196, 8, 128, 128),
                                    of_images(2, (7, 7), 8, 32, 128, 49), PROBLEMS["windows"]])


SMALL = st.integers(1, 5)


@given(st.one_of(
    st.builds(of_tokens, SMALL, SMALL, SMALL, SMALL),
    st.builds(of_windows, SMALL, SMALL, SMALL, SMALL, SMALL),
    st.builds(of_images, SMALL, st.tuples(SMALL, SMALL), SMALL, SMALL, SMALL, SMALL),
    st.builds(of_heads, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL)))
def test_views_describe_the_attention(problem: FusionProblem) -> None:
    inputs, weights = random_inputs(problem), random_weights(problem)
    np.testing.assert_allclose(attention(problem, Variant((), problem.inputs, problem.outputs),
                                         inputs, weights),
                               reference(problem, inputs, weights), rtol=1e-6, atol=1e-9)


def test_images_with_channels_last_are_read_where_they_are() -> None:
    variants = list(ALGORITHM.variants(PROBLEMS["images"], RecordingDevice()))
    assert {variant.inputs[0].layout for variant in variants} == {"NCHW", "NHWC"}


def test_other_layers_are_not_recognised() -> None:
    def parts(squares: bool = False) -> tuple[Layers, Source, Source]:
        p = Layers()
        q, k, v = (p.input((2, 3, 4)) for _ in range(3))
        scores = p.product(q, k, (1,))
        if squares:
            x = operand("x")
            scores = p.compute(x * x, x=scores)
        softmax = p.softmax(scores)
        return p, softmax, p.product(softmax, v)

    p, softmax, result = parts()
    assert ALGORITHM.recognises(p.fusion(result))
    assert not ALGORITHM.recognises(p.fusion(result, softmax))
    p, _, result = parts(squares=True)
    assert not ALGORITHM.recognises(p.fusion(result))


def test_other_uses_of_the_softmax_are_not_recognised() -> None:
    def recognised(use: Callable[[Layers, Source, Source], Source], added: float = 1.0) -> bool:
        p = Layers()
        q, k, v = (p.input((2, 4, 4)) for _ in range(3))
        scores = p.compute(operand("x") + added, x=p.product(q, k, (1,)))
        return ALGORITHM.recognises(p.fusion(use(p, p.softmax(scores), v)))

    assert recognised(Layers.product)
    assert not recognised(Layers.product, -math.inf)
    assert not recognised(lambda p, softmax, v: p.product(softmax, v, (0,)))
    assert not recognised(lambda p, softmax, v: p.product(softmax, p.transpose(softmax, 0, 2, 1)))
    assert not recognised(lambda p, softmax, v: p.product(v, softmax))


def test_long_rows_give_a_reason() -> None:
    assert ALGORITHM.supports(of_tokens(1, 4, 1, 136), RecordingDevice()) == (
        "supports rows of at most 128 elements, not 136")


def _network(read_twice: bool = False) -> Graph:
    """A layer of attention as exporters write it, without its output product."""
    build, rng = GraphBuilder("attention"), np.random.default_rng(0)
    x = build.input("x", (None, 21, 24))
    weight = build.constant("w", rng.standard_normal((24, 72), np.float32))
    y = build.reshape(build.add("matmul", [x, weight]), (-1, 21, 3, 2, 12))
    moved = build.add("transpose", [y], permutation=(2, 0, 3, 1, 4))
    q, k, v = (build.add("slice", [moved], starts=(index,), ends=(index + 1,), axes=(0,),
                         steps=(1,)) for index in range(3))
    q, k, v = (build.reshape(value, (-1, 2, 21, 12)) for value in (q, k, v))
    k = build.add("transpose", [k], permutation=(0, 1, 3, 2))
    scores = build.add("matmul", [build.apply("mul", q, build.constant("c", np.float32(0.3))), k])
    result = build.add("matmul", [build.softmax(scores), v])
    result = build.add("transpose", [result], permutation=(0, 2, 1, 3))
    build.output(build.reshape(result, (-1, 21, 24)), (None, 21, 24))
    if read_twice:
        build.output(build.apply("relu", moved), (3, None, 2, 21, 12))
    return build.finish()


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_network_has_the_copies_in_the_fusion(read_twice: bool) -> None:
    plan = Plan(_network(read_twice), find("host"))
    layers = plan.layers(2)
    (fusion,) = [fusion for fusion in find_fusions(layers, [out.name for out in plan.outputs])
                 if ALGORITHM.recognises(fusion.problem)]
    copies = [layer.name for layer in layers if layer.op == "copy"]
    # a transpose that other layers read stays a layer of its own; else slices read what it reads
    assert len(copies) == 4 + int(read_twice)
    assert [name for name in copies if name not in fusion.covers] == copies[:int(read_twice)]
