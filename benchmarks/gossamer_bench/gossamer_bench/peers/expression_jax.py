"""Expressions in JAX; needs jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gossamer.expression import Expression


def evaluate(expression: Expression, values: Sequence[Any]) -> list[Any]:
    """Returns the expression's outputs for arrays that broadcast. The expression's constants are
    Python's numbers, which take the dtype of the arrays that they are combined with."""
    results = list(values)
    for step in expression.steps:
        results.append(_FUNCTIONS[step.function](
            *(results[index] for index in step.arguments), *step.constants))
    return [results[index] for index in expression.outputs]


def _truth(compare: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a comparison whose result is 1 or 0 in the dtype of its arguments."""
    return lambda *values: compare(*values).astype(jnp.result_type(*values))


def _where(condition: Any, x: Any, y: Any) -> Any:
    # jnp.where returns float32 where x and y are both Python's numbers
    return jnp.where(condition != 0, x, y).astype(jnp.result_type(condition, x, y))


def _slope_below_zero(x: Any, slope: Any) -> Any:
    return jnp.where(x < 0, x * slope, x)


def _hard_sigmoid(x: Any, slope: float, shift: float) -> Any:
    return jnp.clip(x * slope + shift, 0, 1)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power,
    "fma": lambda x, y, z: x * y + z, "fmod": jnp.fmod,
    "min": jnp.minimum, "max": jnp.maximum, "less": _truth(jnp.less),
    "less_equal": _truth(jnp.less_equal), "greater": _truth(jnp.greater),
    "greater_equal": _truth(jnp.greater_equal), "equal": _truth(jnp.equal),
    "and": _truth(jnp.logical_and), "or": _truth(jnp.logical_or), "not": _truth(jnp.logical_not),
    "where": _where, "neg": jnp.negative, "abs": jnp.abs, "exp": jnp.exp, "log": jnp.log,
    "sqrt": jnp.sqrt, "tanh": jnp.tanh, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan,
    "atan": jnp.arctan, "erf": jax.scipy.special.erf, "floor": jnp.floor,
    "round": jnp.rint, "to_float16": lambda x: x.astype("float16").astype(x.dtype),
    "to_bfloat16": lambda x: x.astype("bfloat16").astype(x.dtype),
    "sigmoid": jax.nn.sigmoid, "sign": jnp.sign, "relu": jax.nn.relu,
    "clip": jnp.clip, "leaky_relu": _slope_below_zero, "prelu": _slope_below_zero,
    "hard_sigmoid": _hard_sigmoid, "constant": lambda value: value}
"""For every function of expressions, the function of JAX with the same arguments and constants."""
