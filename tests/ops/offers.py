"""Texts of drawn problems for records: what problems say of themselves, what algorithms offer for
them, and the results of the reference for numbers whose sums are exact."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.facts import PLUS_MINUS_ONE, REAL
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gather.problem import GatherProblem
from gossamer.tensor import TensorSpec, held
from tests.ops.candidates import DEVICES, candidates, one_of_each_form, own_algorithms
from tests.ops.harness import op_of
from tests.recorded import digest

MADE = {name: of_kind() for name, of_kind in DEVICES.items()}
"""A device of each kind."""
MOST_PREPARED = 4
MOST_ELEMENTS = 20_000
MOST_OPERATIONS = 4_000_000
"""The most elements of a problem's tensors, and the most operations, for which the reference is
computed."""

_EXACT = frozenset(("add", "sub", "mul", "relu", "clip", "sign", "abs", "where", "constant",
                    "greater", "greater_equal"))


def texts(problems: Mapping[str, Problem | str],
          devices: Sequence[Sequence[str]]) -> dict[str, str]:
    """Returns a text of each problem for a record; in the place of an invalid problem stands the
    text of its error, which is kept. Behind the problems come the reasons why algorithms do not
    compute them, which the texts name by their digests.

    devices: names of DEVICES; each of the problems in turn is listed for the next ones of these.
    """
    reasons: dict[str, str] = {}
    found = {}
    for number, (case, problem) in enumerate(problems.items()):
        if isinstance(problem, str):
            found[case] = problem
            continue
        by_offer: dict[str, list[str]] = {}
        algorithms = asked(problem)
        for name in devices[number % len(devices)] if algorithms else ():
            by_offer.setdefault(candidates(
                problem, exact_weights(problem), MADE[name],
                one_of_each_form(number, MOST_PREPARED), reasons, algorithms), []).append(name)
        found[case] = "; ".join([properties(problem), *(
            f"{' and '.join(names)}: {offer}" for offer, names in by_offer.items()),
            results(problem)])
    return {**found, **{f"reason {key}": reason for key, reason in sorted(reasons.items())}}


def asked(problem: Problem) -> list[Algorithm]:
    """Returns the algorithms that plans ask for a problem: those of fusions only where the layers
    are of their kinds."""
    algorithms = own_algorithms(problem)
    if not isinstance(problem, FusionProblem):
        return algorithms
    ops = tuple(part.op for part in problem.parts)
    return [algorithm for algorithm in algorithms if isinstance(algorithm, FusionAlgorithm)
            and ops in algorithm.patterns and algorithm.recognises(problem)]


def properties(problem: Problem) -> str:
    """Returns the text of a problem in tables, its least work, and a digest of everything else that
    other code asks of it."""
    rng = np.random.default_rng(0)
    drawn = problem.example_inputs(rng) if is_small(problem) else []
    examples = [(str(array.dtype), array.shape, sorted(set(array.ravel().tolist()))
                 if array.dtype.kind != "f" or facts.few_values else "floats")
                for array, facts in zip(
                    drawn, itertools.chain(problem.facts, itertools.repeat(REAL)), strict=False)]
    first = [problem.first_images(count) for count in (1, 2)]
    everything = (
        list(map(str, problem.inputs)), list(map(str, problem.outputs)),
        dict(problem.weight_shapes), problem.exact_precision, problem.sums_integers, examples,
        [(each.describe(), list(map(str, each.inputs)), each == problem) for each in first])
    return (f"{problem.describe()}, {problem.flops} operations, {problem.least_bytes} bytes, "
            f"{problem.exact_precision}, {digest(everything)}")


def is_small(problem: Problem) -> bool:
    """Returns whether example inputs of a problem take little time to draw and to compute."""
    elements = sum(spec.size for spec in (*problem.inputs, *problem.outputs))
    return elements <= MOST_ELEMENTS and problem.flops <= MOST_OPERATIONS


def results(problem: Problem) -> str:
    """Returns a text of the reference's results: the first numbers and a digest of all."""
    if not is_small(problem):
        return "large"
    if isinstance(problem, FusionProblem) and not all(map(_is_exact, problem.parts)):
        return "rounded"
    with np.errstate(all="ignore"):
        outputs = op_of(problem).reference(problem, exact_inputs(problem), exact_weights(problem))
    # what is 0 but for roundings is 0 on every machine
    numbers = [[f"{round(number, 9) + 0.0:.6g}" for number in array.ravel().tolist()]
               for array in outputs]
    shown = " ".join(numbers[0][:3])
    return f"= {shown} {digest([numbers, [(str(a.dtype), a.shape) for a in outputs]])}"


def _is_exact(part: Problem) -> bool:
    """Returns whether a layer of a fusion adds, multiplies and compares only, so that its results
    are exact and layers behind it, such as quotients, have the same numbers on every machine."""
    expressions = [each for each in (getattr(part, "expression", None),
                                     getattr(getattr(part, "epilogue", None), "expression", None))
                   if each is not None]
    return all(step.function in _EXACT for each in expressions for step in each.steps)


def exact_inputs(problem: Problem) -> list[np.ndarray]:
    """Returns inputs that are eighths of small integers, so that their sums are exact in any order;
    plus or minus 1 where a tensor is packed."""
    rng = np.random.default_rng(0)
    packed = any(spec.format.is_packed for spec in (*problem.inputs, *problem.outputs))
    inputs = []
    for index, (spec, array) in enumerate(zip(
            problem.inputs, problem.example_inputs(rng), strict=True)):
        if packed:
            array = PLUS_MINUS_ONE.draw(rng, spec.shape)
        elif array.dtype.kind == "f" and not any(
                facts.few_values for facts in problem.facts[index:index + 1]):
            array = rng.integers(-16, 17, spec.shape) / 8
        inputs.append(held(array.astype(spec.logical_dtype), spec))
    return inputs


def exact_weights(problem: Problem, seed: int = 1) -> dict[str, np.ndarray]:
    """Returns constants that are eighths of small integers, whose sums are exact in any order;
    integers where the constants are integers."""
    rng = np.random.default_rng(seed)
    return {name: _constant(rng, problem, name, shape)
            for name, shape in problem.weight_shapes.items()}


def _constant(rng: np.random.Generator, problem: Problem, name: str,
              shape: tuple[int, ...]) -> np.ndarray:
    operands: tuple[TensorSpec, ...] = ()
    if isinstance(problem, FusionProblem):
        index, _, own = name.partition(".")
        return _constant(rng, problem.parts[int(index)], own, shape)
    if isinstance(problem, GatherProblem):
        if name == "operand1":
            length = problem.data.shape[problem.axis]
            return rng.integers(-length, max(length, 1), shape).astype(problem.indices.dtype)
        operands = (problem.data,)
    elif isinstance(problem, ElementwiseProblem):
        operands = problem.operands
    eighths = rng.integers(-16, 17, shape) / 8
    return eighths.astype(operands[int(name[-1])].stored_dtype if operands else "float32")
