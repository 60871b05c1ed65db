"""Converts Darknet's activations to expressions."""

from __future__ import annotations

from collections.abc import Callable

from gossamer.model.compose import Composer
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.network import DarknetNetwork


def activate(network: DarknetNetwork, section: Section, value: str, default: str) -> str:
    """Appends a section's activation, and returns its result. default: the activation where the
    section names none. Raises UnsupportedError for an activation that is not in the table."""
    name = section.text("activation", default)
    if name == "linear":
        return value
    if name not in _FORMULAS:
        raise section.unsupported(f"activation={name} is not computed; gossamer computes "
                                  f"{', '.join(('linear', *_FORMULAS))}", "activation")
    composer = Composer()
    result = _FORMULAS[name](composer, composer.operand(value))
    return network.elementwise(section, name, *composer.build(result))


def _mish(c: Composer, x: int) -> int:
    """Returns x * tanh(log(1 + exp(x))), written so that exp takes no positive number, and cannot
    overflow."""
    small = c.apply("exp", c.apply("neg", c.apply("abs", x)))
    softplus = c.apply("add", c.apply("relu", x),
                       c.apply("log", c.apply("add", small, c.constant(1))))
    return c.apply("mul", x, c.apply("tanh", softplus))


def _hard_mish(c: Composer, x: int) -> int:
    gate = c.apply("clip", c.apply("add", x, c.constant(2)), constants=(0, 2))
    return c.apply("mul", c.apply("mul", x, gate), c.constant(0.5))


def _elu(c: Composer, x: int) -> int:
    below = c.apply("sub", c.apply("exp", c.apply("min", x, c.constant(0))), c.constant(1))
    return c.apply("add", c.apply("relu", x), below)


def _selu(c: Composer, x: int) -> int:
    below = c.apply("sub", c.apply("exp", c.apply("min", x, c.constant(0))), c.constant(1))
    return c.apply("add", c.apply("mul", c.apply("relu", x), c.constant(1.0507)),
                   c.apply("mul", below, c.constant(1.0507 * 1.6732)))


def _gelu(c: Composer, x: int) -> int:
    """Returns GELU by Darknet's approximation with tanh."""
    cube = c.apply("mul", c.apply("mul", x, x), x)
    inner = c.apply("add", c.apply("mul", x, c.constant(0.797885)),
                    c.apply("mul", cube, c.constant(0.035677)))
    gate = c.apply("add", c.apply("tanh", inner), c.constant(1))
    return c.apply("mul", c.apply("mul", x, gate), c.constant(0.5))


def _ramp(c: Composer, x: int) -> int:
    return c.apply("add", c.apply("relu", x), c.apply("mul", x, c.constant(0.1)))


def _loggy(c: Composer, x: int) -> int:
    return c.apply("sub", c.apply("mul", c.apply("sigmoid", x), c.constant(2)), c.constant(1))


_FORMULAS: dict[str, Callable[[Composer, int], int]] = {
    "leaky": lambda c, x: c.apply("leaky_relu", x, constants=(0.1,)),
    "mish": _mish,
    "swish": lambda c, x: c.apply("mul", x, c.apply("sigmoid", x)),
    "relu": lambda c, x: c.apply("relu", x),
    "logistic": lambda c, x: c.apply("sigmoid", x),
    "relu6": lambda c, x: c.apply("clip", x, constants=(0, 6)),
    "tanh": lambda c, x: c.apply("tanh", x),
    "hard_mish": _hard_mish,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "ramp": _ramp,
    "loggy": _loggy,
}
"""The formula of each activation; "linear" has none."""
