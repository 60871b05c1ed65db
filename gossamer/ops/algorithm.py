"""The interface between an op and the algorithms that compute it."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.jobs import Job
from gossamer.device.source import KernelSource
from gossamer.expression import Expression, identity
from gossamer.facts import REAL, ValueFacts
from gossamer.hashed_once import HashedOnce
from gossamer.ops.exactness import in_float16
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, held

PRECISIONS = ("fp32", "tf32", "fp16")
"""The precisions, from the most to the least precise. A policy that allows one of them also allows
the precisions before it."""

EXACT = "b1"
"""The precision that rows of reports and benchmarks state for exact sums of bits. It is not one of
PRECISIONS: policies of every precision allow exact sums."""


@dataclass(frozen=True)
class Epilogue:
    """Element-wise arithmetic, applied to results before they are stored.

    Attributes
    ----------
    expression : Expression
        The arithmetic in float32. Its input 0 is the result, its input ``i + 1`` is operand ``i``.
    operands : tuple of str
        The kind of each further input: "channel" is a constant with one value for each output
        channel, stored in the weights as ``operand<i>``; "tensor" is a run-time input of the
        output's shape.
    """

    expression: Expression = field(default_factory=identity)
    operands: tuple[str, ...] = ()

    @property
    def tensor_count(self) -> int:
        """Number of operands that are run-time inputs."""
        return self.operands.count("tensor")


class Problem(HashedOnce, abc.ABC):
    """One instance of an op: its shapes and attributes, without data.

    Each op has one subclass, a frozen dataclass. The inputs of a problem are activations: the op's
    own inputs come first, then the epilogue's tensor operands. Constants are no inputs; each has a
    name.

    Attributes
    ----------
    op : str
        Name of the op.
    facts : tuple of ValueFacts
        The value facts of each run-time input: REAL for an input that may have many different
        values. Empty where every input may have many different values.
    """

    op: ClassVar[str]
    facts: tuple[ValueFacts, ...] = ()

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Logical specs of the run-time inputs, in the default layout."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Logical specs of the outputs, in the default layout."""

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the constants by name; empty by default."""
        return {}

    @property
    @abc.abstractmethod
    def flops(self) -> int:
        """Number of floating-point operations; a multiply-add counts as two."""

    @property
    def exact_precision(self) -> str:
        """The least precise of PRECISIONS with the results of float32.

        The results are equal for all values that the facts allow.
        """
        return "fp32"

    @property
    def rounding(self) -> str:
        """The precision to which results of float32 variants may be rounded, one of PRECISIONS."""
        return "fp32"

    @property
    def sums_integers(self) -> bool:
        """Whether the op sums products of integers.

        Such sums are exact in float32, unless an algorithm transforms the integers first, as
        Winograd's algorithm does.
        """
        return False

    @property
    def least_bytes(self) -> int:
        """Bytes of every input, weight and output once."""
        weights = sum(4 * int(np.prod(shape)) for shape in self.weight_shapes.values())
        return weights + sum(spec.nbytes for spec in (*self.inputs, *self.outputs))

    def first_images(self, count: int) -> Problem:
        """Return the problem restricted to the first images of the batch.

        Checking a candidate on the smaller problem is cheap, and the outputs of the smaller problem
        are the first images of the full problem's outputs.

        Parameters
        ----------
        count : int
            Largest number of images.

        Returns
        -------
        Problem
            The smaller problem, or this problem where images cannot be separated.
        """
        return self

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw inputs with which candidates are checked and timed.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the random numbers.

        Returns
        -------
        list of numpy.ndarray
            One logical array for each input. Where the facts of an input allow few values, its
            elements are drawn from these values. Else floats are normally distributed, bytes are
            from 0 to 255, and other integers are 0 or 1, so that they are valid indices.
        """
        arrays = []
        for index, spec in enumerate(self.inputs):
            if index < len(self.facts) and self.facts[index].few_values:
                arrays.append(self.facts[index].draw(rng, spec.shape).astype(spec.logical_dtype))
            elif spec.logical_dtype.kind == "f":
                arrays.append(held(rng.standard_normal(spec.shape, dtype=np.float32), spec))
            elif spec.dtype == "uint8":
                arrays.append(rng.integers(0, 256, spec.shape, dtype=np.uint8))
            else:
                arrays.append(rng.integers(0, 2, spec.shape).astype(spec.dtype))
        return arrays

    @abc.abstractmethod
    def describe(self) -> str:
        """Return a short text, such as '3x3 s2 64x56x56 -> 128x28x28'."""


@dataclass(frozen=True)
class Variant(HashedOnce):
    """A config of an algorithm with its layouts and precision.

    Attributes
    ----------
    config : tuple of (str, int or str)
        Names and values of the algorithm's own settings, such as tile sizes.
    inputs, outputs : tuple of TensorSpec
        Specs of the tensors as this variant reads and writes them.
    precision : str
        One of PRECISIONS. A variant of precision "fp16" sums in float32. A tensor
        that the problem states as float32 is float16 in such a variant, unless `inputs` or
        `outputs` of the variant state float32; the kernel itself rounds such inputs to float16.
    workspace : int
        Bytes of scratch memory that a launch needs.
    build_seconds : float
        Seconds that one processor is expected to take to build the variant; 0 where the build is
        too short to matter. The tuner leaves out variants that take too long.
    """

    config: tuple[tuple[str, int | str], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "fp32"
    workspace: int = 0
    build_seconds: float = 0.0

    def __getitem__(self, key: str) -> Any:
        """Return one setting of the config.

        Raises KeyError where no setting has this name.
        """
        return dict(self.config)[key]

    @property
    def as_fp16(self) -> Variant:
        """The same variant with float16 tensors in place of float32 ones."""
        inputs, outputs = (tuple(spec.with_format(dtype="float16")
                                 if spec.dtype == "float32" else spec for spec in specs)
                           for specs in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs, precision="fp16")

    def is_as_precise_as_float32(self, problem: Problem) -> bool:
        """Return whether the variant is as precise as float32.

        Parameters
        ----------
        problem : Problem
            The problem that the variant computes.

        Returns
        -------
        bool
            True for precision fp32, and for a lower precision that is exact for the problem's
            values, such as integers of few bits. False where the variant reads a float32 input in
            float16 that may hold other numbers than such integers.
        """
        if self.precision == "fp32":
            return True
        known = dict(enumerate(problem.facts))
        rounds_input = any(
            own.dtype == "float32" and read.dtype == "float16"
            and not in_float16(known.get(index, REAL))
            for index, (own, read) in enumerate(zip(problem.inputs, self.inputs, strict=True)))
        return not rounds_input and (
            PRECISIONS.index(self.precision) <= PRECISIONS.index(problem.exact_precision))

    @functools.cached_property
    def config_text(self) -> str:
        """The config as one line of ``name=value`` pairs."""
        return " ".join(f"{key}={value}" for key, value in self.config)


@dataclass
class State:
    """A variant that is ready to run: compiled kernels and packed weights.

    Attributes
    ----------
    problem : Problem
        The problem that is computed.
    variant : Variant
        The variant that computes it.
    device : Device
        The device that holds kernels and weights.
    launches : list of Launch
        Kernel launches in the order of execution.
    data : Any
        Further data of the algorithm that no other code reads.
    packed : tuple of Buffer
        Device memory of the packed constants, which is kept as long as the state exists.
    """

    problem: Problem
    variant: Variant
    device: Device
    launches: list[Launch] = field(default_factory=list)
    data: Any = None
    packed: tuple[Buffer, ...] = ()


class Algorithm(abc.ABC):
    """One way to compute an op. Instances are stateless.

    Attributes
    ----------
    op, name : str
        Name of the op that is computed, and of the algorithm.
    dense : bool
        Whether zeros among the weights cost as much as other values.
    vendor : str
        The vendor library whose kernels run, such as cuDNN; empty for gossamer's own kernels.
    reads_parts, writes_parts : bool
        reads_parts: whether the op's own inputs may be parts of the channels of larger tensors in
        NHWC. writes_parts: whether the op's only output may be such a part if the epilogue has no
        tensor operands. A part is aligned as if its channels were a tensor of their own: in each
        pixel it begins at a multiple of its alignment in bytes. This alignment is the largest power
        of 2, at most 16, that divides the number of bytes of its channels in one pixel. A
        concatenation reads and writes parts only where it joins channels.
    by_name_only : bool
        Whether the algorithm computes a layer only where `only` names it. There are two reasons:
        the algorithm was not timed on a GPU yet; or another algorithm is an improved version of
        this algorithm, so that measuring both would gain nothing.
    between_thin : bool
        Whether the algorithm computes layers between pruned or binary ones, and is not measured in
        networks without such layers.
    polls : bool
        Whether its threads go on polling for a while after a launch, on cores that the generated
        code of the next layers needs.
    by_image : bool
        Whether `jobs` also computes fewer images than the problem has, so that a plan computes one
        image after another while what is between layers lies in the caches.
    exact : bool
        Whether the algorithm sums bits to exact integers, so that rows state the precision EXACT.
        Variants of precision fp16 round the sums to float16; their rows state "fp16".
    rounds_sums : bool
        Whether variants of precision fp16 round sums to float16 before the epilogue. Such variants
        do not compute layers that sum integers.
    """

    op: ClassVar[str]
    name: ClassVar[str]
    dense: ClassVar[bool] = True
    vendor: ClassVar[str] = ""
    reads_parts: ClassVar[bool] = False
    writes_parts: ClassVar[bool] = False
    by_name_only: ClassVar[bool] = False
    between_thin: ClassVar[bool] = False
    polls: ClassVar[bool] = False
    by_image: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    rounds_sums: ClassVar[bool] = False

    def stated_precision(self, variant: Variant) -> str:
        """Return the precision of a variant as reports state it: EXACT, or one of PRECISIONS."""
        return EXACT if self.exact and variant.precision != "fp16" else variant.precision

    @abc.abstractmethod
    def supports(self, problem: Any, device: Device) -> str | None:
        """Return why the algorithm cannot compute a problem.

        Parameters
        ----------
        problem : Problem
            A problem of the algorithm's op.
        device : Device
            The device that is to compute it.

        Returns
        -------
        str or None
            The reason why the algorithm cannot be used, as shown to the user; None when it can.
        """

    def version(self, device: Device) -> str:
        """Return the version of the vendor library, or an empty text."""
        return ""

    @abc.abstractmethod
    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        """Return the variants, the fastest expected first.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        device : Device
            The device that is to compute it.

        Returns
        -------
        iterable of Variant
            The variants. The first one is in float32 and works for every supported problem.
        """

    def variants_in(self, problem: Any, device: Device,
                    precisions: Sequence[str]) -> Iterable[Variant]:
        """Return the variants of some precisions, the fastest expected first.

        An algorithm overrides this method where listing the variants of other precisions takes
        long. Each variant that the method returns has to be among those of `variants`, because
        `variants` is called when the file of a plan is read.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        device : Device
            The device that is to compute it.
        precisions : sequence of str
            Some of PRECISIONS.

        Returns
        -------
        iterable of Variant
            The variants of these precisions. An algorithm with many configs may list only the
            configs that it expects to be fast in the last precision of `precisions`.
        """
        return (variant for variant in self.variants(problem, device)
                if variant.precision in precisions)

    def expected_us(self, problem: Any, variant: Variant, device: Device) -> float | None:
        """Return the expected time by the algorithm's own model.

        The tuner ranks variants by this time: some are measured first, others are not measured at
        all. The tuner compares expected times with measured ones and corrects the scale of the
        model.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        variant : Variant
            One of its variants.
        device : Device
            The device that is to compute it.

        Returns
        -------
        float or None
            Microseconds; None where the algorithm has no model.
        """
        return None

    def launch_count(self, variant: Variant) -> int:
        """Return how many kernels a variant launches, 1 by default.

        The tuner adds `Device.queued_us` for each of them to `expected_us`.
        """
        return 1

    def kernel_sources(self, problem: Any, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        """Return the kernels that other variants may share.

        An algorithm overrides this method where many variants share few kernels. Variants whose
        kernels are compiled already are then measured before others.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        variant : Variant
            One of its variants.
        device : Device
            The device that is to compute it.

        Returns
        -------
        tuple of KernelSource
            The kernels; empty where they are not known before `prepare` is called.
        """
        return ()

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job] | None:
        """Return the calls of generated code that `launch` makes; None where it makes others.

        A plan runs the calls of neighbouring steps as one. `images` says how many images the
        buffers hold, by default those of the problem; it is given only to an algorithm that
        computes `by_image`.
        """
        return None

    def work_ahead(self, problem: Any, variant: Variant,
                   device: Device) -> Callable[[Device], object] | None:
        """Return work that another process can do before `prepare`.

        Only the algorithms of vendors' libraries need this method: for gossamer's own algorithms
        the device has other processes compile.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        variant : Variant
            One of its variants.
        device : Device
            The device that is to compute it.

        Returns
        -------
        callable or None
            A function that can be pickled. Another process calls the function with the same device.
            The function does those steps of `prepare` that take long, and puts their results into
            the kernel cache. None where no step of `prepare` takes long.
        """
        return None

    @abc.abstractmethod
    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        """Pack the weights and compile the kernels.

        The method is called for each candidate and for each context. Later calls are cheap: each
        `Weights` caches the arrays that it packed, and the device caches its kernels.

        Parameters
        ----------
        weights : Weights
            The layer's constants, which hold arrays of the problem's `weight_shapes`.
        problem : Problem
            A problem that `supports` accepts.
        variant : Variant
            One of its variants.
        device : Device
            The device that is to compute it.

        Returns
        -------
        State
            The compiled kernels and packed weights that `launch` needs.

        Raises
        ------
        CompileError
            A kernel could not be built.
        OutOfMemoryError
            The device has no room for the packed weights.
        """

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        """Queue the computation, and return without waiting for its end.

        Parameters
        ----------
        state : State
            The state that `prepare` returned.
        inputs, outputs : sequence of Buffer
            Device memory of the tensors, laid out as the variant's specs say.
        workspace : Buffer or None
            Scratch memory of at least the variant's `workspace` bytes; None where the variant needs
            no scratch memory.
        stream : Any
            A stream of the device; None is its default stream.
        """
        for step in state.launches:
            step.run(state.device, inputs, outputs, workspace, stream)
