"""ValueFacts: bounds and other facts that hold for all values of a tensor.

The facts of a result hold in float32 arithmetic, for any summation order, with and without fused
multiply-adds. They do not hold for algorithms that transform their inputs, such as Winograd
convolution: the results of such an algorithm may differ by up to its tolerance.

Facts also tell which lower precisions leave all results unchanged: products are accumulated in
float32 in every precision, so these are the precisions that represent all operands exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Exact = Fraction | float
"""An exact number: a Fraction, or a float infinity."""

_LARGEST = Fraction(float(np.finfo(np.float32).max))
_SMALLEST = Fraction(1, 2**126)
"""The largest float32 number, and the smallest normal one. Devices may flush smaller ones to 0."""

_SAMPLES = (64, 4096)
"""Numbers of leading values that are tested for a common grid before the whole array is tested.

In most arrays, the first 64 values do not lie on a common grid, so the test ends early.
"""


@dataclass(frozen=True)
class ValueFacts:
    """Bounds and grid of the values of a tensor.

    The facts say nothing about NaN and values computed from NaN. -0.0 counts as 0.

    low, high: the bounds (inclusive); each may be infinite.
    step: 0.0 if any real number from low to high may occur, or if low = high and only one value is
    possible. Otherwise the values lie on a grid: every value is exactly low + k * step for some
    k = 0, 1, 2, ...; a finite `high` has this form, too.
    nan: whether NaN may occur, as gossamer.model.facts.stating_nan() determines. The methods of
    this class do not set `nan` in their results.

    Raises ValueError if a value on the grid is not exact in float32.
    """

    low: float = -math.inf
    high: float = math.inf
    step: float = 0.0
    nan: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            object.__setattr__(self, name, float(getattr(self, name)) + 0.0)  # no -0.0
        if not self.low <= self.high or not 0 <= self.step < math.inf:
            raise ValueError(f"values from {self.low} to {self.high} in steps of {self.step}: "
                             "expected low <= high and a finite step of 0 or more")
        if self.step and (self.low == self.high or math.isinf(self.low)
                          or not _is_grid(*map(_exact, (self.low, self.high, self.step)))):
            raise ValueError(f"values from {self.low} to {self.high} in steps of {self.step} are "
                             "not all exact in float32: state them without a step")

    @property
    def count(self) -> int | None:
        """Number of possible values.

        None if any real number between the bounds is possible, or a bound is infinite.
        """
        if self.low == self.high and math.isfinite(self.low):
            return 1
        if not self.step or math.isinf(self.high):
            return None
        return int((Fraction(self.high) - Fraction(self.low)) / Fraction(self.step)) + 1

    @property
    def largest(self) -> float:
        """The largest possible magnitude, which may be infinite."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_binary(self) -> bool:
        """Whether there are exactly two values."""
        return self.count == 2

    @property
    def is_ternary(self) -> bool:
        """Whether there are exactly three values."""
        return self.count == 3

    @property
    def is_integer(self) -> bool:
        """Whether all values are integers."""
        return (self.step > 0 or self.low == self.high) and (
            self.low.is_integer() and self.step.is_integer())

    @property
    def few_values(self) -> bool:
        """Whether the values lie on a grid of at most 2**16 points."""
        return self.step > 0 and self.count is not None and self.count <= 1 << 16

    def holds(self, array: np.ndarray) -> bool:
        """Return whether the facts hold for an array, ignoring NaN."""
        values = np.asarray(array, np.float64)
        values = values[~np.isnan(values)]
        if not ((values >= self.low) & (values <= self.high)).all():
            return False
        finite = values[np.isfinite(values)]
        return not self.step or all((Fraction(value) - Fraction(self.low)) % Fraction(self.step)
                                    == 0 for value in np.unique(finite).tolist())

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return random float32 values, drawn uniformly from the possible values.

        Raises ValueError if infinitely many values are possible.
        """
        if self.count is None:
            raise ValueError(f"cannot draw from {self}: expected finitely many values")
        return (self.low + self.step * rng.integers(0, self.count, shape)).astype(np.float32)

    def join(self, other: ValueFacts) -> ValueFacts:
        """Return facts that hold for the values of this tensor and of another one."""
        if self == other:
            return self
        low, high = min(self.low, other.low), max(self.high, other.high)
        if not (self._on_grid and other._on_grid):
            return ValueFacts(low, high)
        step = common(Fraction(self.step), Fraction(other.step),
                      Fraction(self.low) - Fraction(other.low))
        return grid(Fraction(low), _exact(high), step)

    def parted(self, limits: Sequence[float]) -> list[ValueFacts]:
        """Return the facts of the values in each interval between limits.

        The intervals are: below the first limit, the first limit itself, between the first and the
        second limit, and so on. Intervals without values are omitted.

        limits: finite numbers in ascending order.
        """
        parts: list[ValueFacts | None] = []
        lower = -math.inf
        for limit in limits:
            is_value = self.low <= limit <= self.high and (
                not self.step or (Fraction(limit) - Fraction(self.low)) % Fraction(self.step) == 0)
            parts += [self._inside(lower, limit), ValueFacts(limit, limit) if is_value else None]
            lower = limit
        parts.append(self._inside(lower, math.inf))
        return [part for part in parts if part is not None]

    def _inside(self, lower: float, upper: float) -> ValueFacts | None:
        """Return the facts of the values above `lower` and below `upper`.

        None if there are no such values. An infinite limit does not exclude infinite values.
        """
        low, high = self.low, self.high
        if not self.step:
            if math.isfinite(lower) and lower >= low:
                low = math.nextafter(lower, math.inf)
            if math.isfinite(upper) and upper <= high:
                high = math.nextafter(upper, -math.inf)
            return ValueFacts(low, high) if low <= high else None
        first, step = Fraction(self.low), Fraction(self.step)
        if math.isfinite(lower) and lower >= low:
            low = float(first + ((Fraction(lower) - first) // step + 1) * step)
        if math.isfinite(upper) and upper <= high:
            high = float(first - ((first - Fraction(upper)) // step + 1) * step)
        if low > high:
            return None
        return ValueFacts(low, high, 0.0 if low == high else self.step)

    def neg(self) -> ValueFacts:
        if math.isinf(self.high):
            return ValueFacts(-self.high, -self.low)
        return ValueFacts(-self.high, -self.low, self.step)

    def add(self, other: ValueFacts) -> ValueFacts:
        low, high = _sum(self.low, other.low, -math.inf), _sum(self.high, other.high, math.inf)
        if self.count is None or other.count is None:
            return _range(low, high)
        return grid(low, high, common(Fraction(self.step), Fraction(other.step)))

    def sub(self, other: ValueFacts) -> ValueFacts:
        return self.add(other.neg())

    def mul(self, other: ValueFacts) -> ValueFacts:
        corners = [_product(x, y) for x in (self.low, self.high) for y in (other.low, other.high)]
        low, high = min(corners), max(corners)
        if self.count is None or other.count is None:
            return _range(low, high)
        a, s, b, t = map(Fraction, (self.low, self.step, other.low, other.step))
        return grid(low, high, common(a * t, b * s, s * t))

    def abs(self) -> ValueFacts:
        if self.low >= 0:
            return self
        if self.high <= 0:
            return self.neg()
        both = self.join(self.neg())
        least = Fraction(0)
        if both.step:
            least = Fraction(both.low) % Fraction(both.step)
        return both._between(least, max(-self.low, self.high))

    def minimum(self, other: ValueFacts) -> ValueFacts:
        if self.high <= other.low:
            return self
        if other.high <= self.low:
            return other
        return self.join(other)._between(_exact(min(self.low, other.low)),
                                         min(self.high, other.high))

    def maximum(self, other: ValueFacts) -> ValueFacts:
        if self.low >= other.high:
            return self
        if other.low >= self.high:
            return other
        return self.join(other)._between(_exact(max(self.low, other.low)),
                                         max(self.high, other.high))

    def relu(self) -> ValueFacts:
        return self.maximum(point(0.0))

    def clip(self, low: float, high: float) -> ValueFacts:
        """Return the facts of min(max(x, low), high)."""
        return self.maximum(point(low)).minimum(point(high))

    def sign(self) -> ValueFacts:
        """Return the facts of the signs of the values: -1, 0 or 1."""
        low = -1 if self.low < 0 else 0 if self.low == 0 else 1
        high = 1 if self.high > 0 else 0 if self.high == 0 else -1
        passes_zero = low < 0 < high and self.step and Fraction(self.low) % Fraction(self.step)
        return PLUS_MINUS_ONE if passes_zero else integers(low, high)

    def floor(self) -> ValueFacts:
        return self._rounded(*[x if math.isinf(x) else math.floor(x)
                               for x in (self.low, self.high)])

    def round(self) -> ValueFacts:
        """Return the facts of the values rounded to the nearest integer, halves to even."""
        return self._rounded(*[x if math.isinf(x) else round(x) for x in (self.low, self.high)])

    def truncate(self) -> ValueFacts:
        """Return the facts of the values rounded towards 0."""
        return self._rounded(*[x if math.isinf(x) else math.trunc(x)
                               for x in (self.low, self.high)])

    def same_sign(self) -> ValueFacts:
        """Return the facts of f(x) for any sign-preserving function f.

        A sign-preserving function never maps a value to the opposite sign, but may map it to 0.
        """
        return ValueFacts(0.0 if self.low >= 0 else -math.inf, 0.0 if self.high <= 0 else math.inf)

    def sum_of(self, count: int) -> ValueFacts:
        """Return the facts of sums of `count` values in any order.

        The result is REAL if partial sums may be rounded.
        """
        if count == 1:
            return self
        if count == 0 or self.low == self.high == 0:
            return point(0.0)
        if self.count is None:
            return REAL
        low, high, step = map(Fraction, (self.low, self.high, self.step))
        if not fits_multiples(unit(low, step), count * max(abs(low), abs(high))):
            return REAL
        return grid(count * low, count * high, step)

    @property
    def _on_grid(self) -> bool:
        return self.step > 0 or self.count == 1

    def _between(self, low: Exact, high: float) -> ValueFacts:
        """Return these facts with other bounds, which must be on the same grid."""
        if self.step and isinstance(low, Fraction):
            return grid(low, _exact(high), Fraction(self.step))
        return _range(low, _exact(high))

    def _rounded(self, low: float, high: float) -> ValueFacts:
        """Return the facts of the values when they are rounded to integers from `low` to `high`."""
        if self.is_integer:
            return self
        if math.isinf(low):
            return ValueFacts(low, high)
        return grid(Fraction(low), _exact(high), Fraction(1))

    def __str__(self) -> str:
        if self.count is not None and self.count <= 3:
            values = [self.low + self.step * k for k in range(self.count)]
            return " or ".join(f"{value:g}" for value in values)
        grid = f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{grid}"


def point(value: float) -> ValueFacts:
    """Return the facts of one number rounded to float32; for NaN, unbounded facts."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    return ValueFacts() if math.isnan(rounded) else ValueFacts(rounded, rounded)


def integers(low: int, high: int) -> ValueFacts:
    """Return the facts of all integers from low to high.

    If float32 cannot represent all these integers, the result has the same bounds but no grid.
    """
    return grid(Fraction(low), Fraction(high), Fraction(1))


def of_array(array: np.ndarray) -> ValueFacts:
    """Return the facts of a constant, with the coarsest possible grid.

    Floats are rounded to float32. An array that is empty or contains only NaN has the facts of 0.
    """
    array = np.asarray(array)
    values = np.asarray(array, np.float32 if array.dtype.kind == "f" else None).ravel("K")
    if values.dtype.kind == "f" and np.isnan(values.min(initial=0)):
        values = values[~np.isnan(values)]
    if not values.size:
        return point(0.0)
    low, high = values.min().item(), values.max().item()
    if math.isinf(low) or math.isinf(high):
        return ValueFacts(low, high)
    first, last = Fraction(low), Fraction(high)
    if max(-low, high) > (_LARGEST if values.dtype.kind == "f" else 1 << 24):
        return _range(first, last)
    samples = [values[:size] for size in _SAMPLES if size < values.size] + [values]
    if all(((sample == values.dtype.type(low)) | (sample == values.dtype.type(high))).all()
           for sample in samples):
        return grid(first, last, last - first)
    step: Fraction | None = None
    for sample in samples:
        step = _step(sample, first, last)
        if not step:
            break
    return grid(first, last, step) if step else _range(first, last)


def _step(values: np.ndarray, low: Fraction, high: Fraction) -> Fraction | None:
    """Return the step of the coarsest grid that contains all values.

    The grid starts at `low` and contains `high`. Returns None if float32 cannot represent every
    number of the grid.
    """
    wide = values.astype(np.float64)
    mantissas, exponents = np.frexp(wide[wide != 0])
    digits = np.abs(mantissas * 2.0**24).astype(np.int64)
    powers = exponents - 24 + np.log2(digits & -digits).astype(np.int64)
    finest = unit(low, high)
    if powers.size:
        finest = min(finest, Fraction(2) ** int(powers.min()))
    if not fits_multiples(finest, max(abs(low), abs(high))):
        return None
    offsets = ((wide - float(low)) / float(finest)).astype(np.int64)
    return common(int(np.gcd.reduce(offsets)) * finest, high - low)


def unit(*numbers: Fraction) -> Fraction:
    """Return the largest power of 2 that divides all numbers.

    numbers: at least one must be nonzero; the denominators must be powers of 2.
    """
    return min(Fraction(number.numerator & -number.numerator, number.denominator)
               for number in numbers if number)


def common(*numbers: Fraction) -> Fraction:
    """Return the greatest common divisor of the numbers; 0 if all are 0."""
    scale = math.lcm(*[number.denominator for number in numbers])
    return Fraction(math.gcd(*[int(number * scale) for number in numbers]), scale)


def fits_multiples(power: Fraction, largest: Fraction) -> bool:
    """Return whether all multiples of `power` up to `largest` are exact in float32.

    A multiple that a device may flush to 0 does not count as exact.

    power: a power of 2.
    largest: the largest magnitude of the multiples.
    """
    return power >= _SMALLEST and largest <= min(power * (1 << 24), _LARGEST)


def _fits(value: Fraction) -> bool:
    """Return whether a number is exact in float32 on every device."""
    return not value or (_SMALLEST <= abs(value) <= _LARGEST and (
        Fraction(float(np.float32(float(value)))) == value))


def _below(value: Exact) -> float:
    """Return the largest float32 number that is not above a value.

    0 is returned in place of a positive subnormal number.
    """
    if not isinstance(value, Fraction):
        return value
    if abs(value) > _LARGEST:
        return -math.inf if value < 0 else float(_LARGEST)
    rounded = np.float32(float(value))
    if Fraction(float(rounded)) > value:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return 0.0 if 0 < rounded < _SMALLEST else float(rounded)


def _exact(value: float) -> Exact:
    return value if math.isinf(value) else Fraction(value)


def _sum(x: float, y: float, otherwise: float) -> Exact:
    """Return the exact x + y; `otherwise` for the sum of opposite infinities."""
    if math.isinf(x) or math.isinf(y):
        return otherwise if math.isnan(x + y) else x + y
    return Fraction(x) + Fraction(y)


def _product(x: float, y: float) -> Exact:
    """Return the exact x * y; 0 for 0 times infinity (a NaN)."""
    if 0 in (x, y):
        return Fraction(0)
    return x * y if math.isinf(x) or math.isinf(y) else Fraction(x) * Fraction(y)


def _is_grid(low: Exact, high: Exact, step: Exact) -> bool:
    """Return whether all grid values are exact in float32, and the step in float64."""
    assert isinstance(low, Fraction) and isinstance(step, Fraction)
    if Fraction(float(step)) != step or not _fits(low):
        return False
    if not isinstance(high, Fraction):
        return True
    if (high - low) % step:
        return False
    if high - low == step:
        return _fits(high)
    return fits_multiples(unit(low, step), max(abs(low), abs(high)))


def grid(low: Exact, high: Exact, step: Fraction) -> ValueFacts:
    """Return the facts of values on a grid.

    If float32 cannot represent all values of the grid, results are rounded; the returned facts then
    have the bounds but no grid.
    """
    if low != high and step and isinstance(low, Fraction) and _is_grid(low, high, step):
        return ValueFacts(float(low), float(high), float(step))
    return _range(low, high)


def _range(low: Exact, high: Exact) -> ValueFacts:
    """Return the facts of real numbers from low to high, rounded to float32.

    Subnormal numbers may be flushed to 0.
    """
    return ValueFacts(_below(low), -_below(-high))


REAL = ValueFacts()
NONNEGATIVE = ValueFacts(0.0)
PLUS_MINUS_ONE = ValueFacts(-1.0, 1.0, 2.0)
TERNARY = integers(-1, 1)
"""Facts of all real numbers (REAL), of numbers >= 0 (NONNEGATIVE), of {-1, 1} (PLUS_MINUS_ONE) and
of {-1, 0, 1} (TERNARY)."""


def are_scaled_signs(weight: np.ndarray) -> bool:
    """Return whether the weights of each output channel all have the same magnitude.

    The magnitude must be finite and nonzero. The weights have shape (M, ...).
    """
    channels = weight.reshape(len(weight), -1)
    # the generator stops at the first channel with different magnitudes, usually channel 0
    return all(bool((np.abs(rows) == np.abs(rows[:, :1])).all() and np.isfinite(rows[:, 0]).all()
                    and rows[:, 0].all())
               for rows in (channels[:1], channels))


_LARGEST_EXACT = 2048
"""float16 and TF32 represent all integers up to this magnitude exactly."""
BYTES, NARROW = integers(-255, 255), integers(-_LARGEST_EXACT, _LARGEST_EXACT)
"""BYTES: the possible differences of two 8-bit integers that are both signed or both unsigned.
NARROW: the integers that float16 and TF32 represent exactly."""


def in_float16(facts: ValueFacts) -> bool:
    """Return whether the values are integers that float16 represents exactly."""
    return facts.is_integer and facts.largest <= _LARGEST_EXACT


def sums_integers(facts: tuple[ValueFacts, ...], weights: ValueFacts) -> bool:
    """Return whether a layer accumulates products of integers.

    Sums of integers are exact in float32 as long as their magnitudes stay within 2^24.

    facts: the value facts of the layer's run-time inputs.
    weights: the value facts of the layer's weights.
    """
    return bool(facts) and facts[0].is_integer and weights.is_integer


def precision_of_products(facts: tuple[ValueFacts, ...], weights: ValueFacts,
                          result: ValueFacts) -> str:
    """Return the lowest precision that does not change the results of an op with products.

    facts: the value facts of the layer's run-time inputs.
    weights: the value facts of the layer's weights.
    result: the value facts of the layer's output.
    """
    if not facts or not in_float16(facts[0]) or not in_float16(weights):
        return "fp32"
    return "fp16" if all(map(in_float16, (*facts, result))) else "tf32"


def precision_of_values(facts: Iterable[ValueFacts]) -> str:
    """Return the lowest precision that does not change the results of an op without products.

    facts: the value facts of all values that the op reads or writes.
    """
    known = list(facts)
    return "fp16" if known and all(map(in_float16, known)) else "fp32"
