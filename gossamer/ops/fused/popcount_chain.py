"""Consecutive binary matrix products in one kernel with clusters (sm_90).

Each product reads the signs of the previous product's results. A product with a single row takes
less time than a kernel launch, so one kernel for all products is much faster than one kernel per
product. Products of signs are computed by XOR and popcount. Source: M. Courbariaux, I. Hubara, D.
Soudry, R. El-Yaniv and Y. Bengio, "Binarized neural networks", arXiv 1602.02830, 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue, State, Variant
from gossamer.ops.conv2d.binary.layer import alphas, binary_form, reason_not_binary, sign_words
from gossamer.ops.conv2d.binary.thresholds import thresholds_of
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, entry, weights_of_part
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import result_dtype
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec

_SOURCE = Path(__file__).with_name("popcount_chain.cu")
_CLUSTER = 8
"""Number of work-groups per cluster."""
_ITEMS = (128, 256)
"""Candidate numbers of work-items per work-group."""
_MOST_PRODUCTS = 4
_MOST_ROWS = (2**31 - 1) // _CLUSTER
"""Maximum number of rows: each row is computed by one cluster, and a grid has at most this many
clusters."""
_NEVER = 2**28
"""A threshold that no sum reaches."""


@dataclass(frozen=True)
class _Product:
    """A matrix product of a chain.

    part: index of the product among the fusion's parts.
    problem: the problem of the product.
    """

    part: int
    problem: GemmProblem

    @property
    def planes(self) -> int:
        """Number of bits per value of the input."""
        return binary_form(pointwise(self.problem)).planes

    @property
    def words(self) -> int:
        """Number of 32-bit words per row of the input."""
        return -(-self.problem.depth // 32)

    @property
    def quads(self) -> int:
        """Number of quads (four 32-bit words) per row of the input."""
        return -(-self.words // 4)

    @property
    def columns(self) -> int:
        """Number of columns per work-group.

        Together, the columns of all work-groups, including padding, fill whole 64-bit words.
        """
        return -(-(-(-self.problem.columns // 64) * 64) // (32 * _CLUSTER)) * 32

    def bits(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the signs of the weights in the order in which work-items read them.

        The array is (work-groups, words) in uint32.
        """
        words = sign_words(weights_of_part(arrays, self.part), pointwise(self.problem), 32)
        filled = np.zeros((_CLUSTER * self.columns, 4 * self.quads), np.uint32)
        filled[:self.problem.columns, :self.words] = words.reshape(self.problem.columns, -1)
        return filled.reshape(_CLUSTER, self.columns, self.quads, 4).swapaxes(1, 2).reshape(
            _CLUSTER, -1)

    def constants(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return four numbers per column, as an int32 array (work-groups, numbers).

        The first three numbers are two thresholds, and the direction in which sums are compared
        with them. The fourth number is the factor by which sums are multiplied, as the bits of a
        float32. For padding columns, the direction and the factor are 0, so that results are 0.
        """
        own = weights_of_part(arrays, self.part)
        filled = np.zeros((_CLUSTER * self.columns, 4), np.int32)
        filled[:, :2] = _NEVER
        table = thresholds_of(own, self.problem.epilogue, self.problem.depth)
        if table is not None:
            filled[:self.problem.columns, :3] = table.table.T
        filled[:self.problem.columns, 3] = alphas(own).view(np.int32)
        return filled.reshape(_CLUSTER, -1)

    def epilogue(self, arrays: Mapping[str, np.ndarray]) -> Epilogue | None:
        """Return the epilogue that the kernel computes; None if thresholds replace the epilogue."""
        found = thresholds_of(weights_of_part(arrays, self.part), self.problem.epilogue,
                              self.problem.depth)
        return self.problem.epilogue if found is None else None


@dataclass(frozen=True)
class _Chain:
    """A chain of products; each product reads the result of the previous product.

    signs: the expression that computes the first product's inputs, the signs of floats. None if the
    first product reads packed words.
    products: the products in order.
    """

    signs: Expression | None
    products: tuple[_Product, ...]

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Offsets of weights, constants, inputs and partial counts in shared memory.

        The unit is 16 bytes.
        """
        constants = sum(product.columns * product.quads for product in self.products)
        inputs = constants + sum(product.columns for product in self.products)
        return 0, constants, inputs, inputs + sum(
            product.planes * product.quads for product in self.products)

    def shared_bytes(self, items: int) -> int:
        """Return the bytes of shared memory per work-group."""
        return 16 * self.offsets[3] + 4 * items + 8 * len(self.products)


class PopcountChain(FusionAlgorithm):
    """Consecutive binary matrix products in one kernel."""

    name = "popcount_chain"
    exact = True
    patterns = tuple((*before, *["gemm"] * count) for count in range(_MOST_PRODUCTS, 1, -1)
                     for before in (("elementwise",), ()))

    def recognises(self, problem: FusionProblem) -> bool:
        return not isinstance(_chain(problem), str)

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if device.limits.cluster < _CLUSTER:
            return f"{device.name} has no clusters of work-groups (sm_90 or newer)"
        chain = _chain(problem)
        if isinstance(chain, str):
            return chain
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if chain.products[0].problem.rows > _MOST_ROWS:
            return f"supports at most {_MOST_ROWS} rows"
        needed, most = chain.shared_bytes(max(_ITEMS)), device.limits.shared_bytes_opt_in
        if needed > most:
            return (f"an eighth of the weights needs {needed} bytes of shared memory; a "
                    f"work-group has {most}")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        chain = _chain(problem)
        assert isinstance(chain, _Chain)
        (x,), (y,) = problem.inputs, problem.outputs
        first, last = (pointwise(chain.products[end].problem) for end in (0, -1))
        sources, targets = [x], [y]
        if chain.signs is None:
            sources = [TensorSpec(x.shape, Format(f"packed{bits}", binary_form(first).input))
                       for bits in (64, 32)]
        packed = binary_form(last).output
        if packed is not None:
            targets += [TensorSpec(y.shape, Format(f"packed{bits}", packed)) for bits in (64, 32)]
        for items in _ITEMS:
            for source in sources:
                for target in targets:
                    yield Variant((("items", items),), (source,), (target,))

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        chain = _chain(problem)
        assert isinstance(chain, _Chain)
        together = max(1, device.limits.compute_units // _CLUSTER)
        waves = -(-max(1, chain.products[0].problem.rows) // together)
        return 1.5 + waves * (0.6 * len(chain.products) + chain.shared_bytes(0) / 1e5)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        chain = _chain(problem)
        assert isinstance(chain, _Chain)
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        products, items = chain.products, int(variant["items"])
        epilogues = [product.epilogue(weights.arrays) for product in products]
        kernel = device.compile(KernelSource.of(
            _SOURCE, "popcount_chain", _macros(chain, epilogues, variant, items),
            architectures=("sm_90", "sm_100"), dynamic_shared=True))
        operands: list[Argument | Callable[..., Argument]] = []
        for product, epilogue in zip(products, epilogues, strict=True):
            if epilogue is not None:
                operands += epilogue_arguments(epilogue, weights, 1, product.problem.columns,
                                               prefix=f"{product.part}.")
        return State(problem, variant, device, [Launch(
            kernel, (_CLUSTER * products[0].problem.rows,), (items,),
            (input_buffer(0),
             weights.packed("bits for a chain", partial(_joined, products, _Product.bits)),
             weights.packed("constants of a chain",
                            partial(_joined, products, _Product.constants)),
             output_buffer(0), *operands), chain.shared_bytes(items))])


def _chain(problem: FusionProblem) -> _Chain | str:
    """Return a fusion as a chain of products, or the reason why it is not one."""
    if tuple(part.op for part in problem.parts) not in PopcountChain.patterns:
        return "needs successive matrix products"
    last = len(problem.parts) - 1
    if problem.exits != ((last, 0),):
        return "layers outside the fusion read values between the products"
    if problem.sources != ((entry(0),), *[((number, 0),) for number in range(last)]):
        return "each layer must read only the result of the previous layer"
    signs = None
    first, *others = problem.parts
    if isinstance(first, ElementwiseProblem):
        if (len(first.operands) != 1 or first.constants or first.dtypes != ("float32",)
                or first.arithmetic != "float32" or result_dtype(first.expression) is None):
            return "the layer before the products does not compute signs of floats"
        signs = first.expression
    else:
        others = [first, *others]
    products = []
    for number, part in enumerate(others, len(problem.parts) - len(others)):
        assert isinstance(part, GemmProblem)
        if (reason := reason_not_binary(pointwise(part))) is not None:
            return reason
        products.append(_Product(number, part))
    return _Chain(signs, tuple(products))


def _joined(products: tuple[_Product, ...],
            pack: Callable[[_Product, Mapping[str, np.ndarray]], np.ndarray],
            arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return, for each work-group, the concatenation of all products' packed arrays."""
    return np.concatenate([pack(product, arrays) for product in products], axis=1)


def _macros(chain: _Chain, epilogues: list[Epilogue | None], variant: Variant,
            items: int) -> dict[str, object]:
    """Return the macros described in popcount_chain.cu."""
    (source,), (target,) = variant.inputs, variant.outputs
    products = chain.products
    bits, constants, inputs, partial_counts = chain.offsets
    last = len(products) - 1
    macros: dict[str, object] = {
        "ITEMS": items, "CLUSTER": _CLUSTER, "COUNT": len(products), "BITS": bits,
        "CONSTANTS": constants, "INPUTS": inputs, "PARTIAL": partial_counts,
        "SIGNS": int(chain.signs is not None),
        "INPUT": "uint" if source.format.is_packed else "float",
        "WORD_BITS": 8 * source.stored_dtype.itemsize,
        "OUTPUT": "uint" if target.format.is_packed else "float",
        "OUT_WORD_BITS": 8 * target.stored_dtype.itemsize if target.format.is_packed else 0,
        "OUT_PLANES": PACKED_DTYPES[target.dtype].planes if target.format.is_packed else 0,
        "PRODUCTS": " ".join([f"HIDDEN({i}, {i + 1})" for i in range(last)] + [f"FINAL({last})"]),
        "ALL_COLUMNS": ", ".join(str(product.columns) for product in products),
        "ALL_QUADS": ", ".join(str(product.quads) for product in products),
        "EPILOGUES": " ".join(f"L{i}_EPILOGUE_PARAMETERS" for i in range(len(products)))}
    if chain.signs is not None:
        macros.update(epilogue_macros(Epilogue(chain.signs), prefix="SIGN_"))
    for i, (product, epilogue) in enumerate(zip(products, epilogues, strict=True)):
        macros.update({
            f"L{i}_DEPTH": product.problem.depth, f"L{i}_WORDS": product.words,
            f"L{i}_QUADS": product.quads, f"L{i}_PLANES": product.planes,
            f"L{i}_RESULTS": product.problem.columns, f"L{i}_COLUMNS": product.columns,
            f"L{i}_INPUT": inputs, f"L{i}_BITS": bits, f"L{i}_CONSTANTS": constants,
            f"L{i}_THRESHOLDS": int(epilogue is None),
            **epilogue_macros(epilogue or Epilogue(), prefix=f"L{i}_")})
        inputs += product.planes * product.quads
        bits += product.columns * product.quads
        constants += product.columns
    return macros
