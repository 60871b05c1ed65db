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
from gossamer.facts import REAL, ValueFacts, in_float16
from gossamer.hashed_once import HashedOnce
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, held

PRECISIONS = ("fp32", "tf32", "fp16")
"""The precisions, from the most to the least precise. A policy that allows a precision also allows
all more precise ones."""

EXACT = "b1"
"""For algorithms whose sums of bits are exact, reports and benchmarks show this precision. It is
not one of PRECISIONS, because every policy allows exact sums."""


@dataclass(frozen=True)
class Epilogue:
    """Element-wise arithmetic, applied to results before they are stored.

    Attributes
    ----------
    expression : Expression
        The arithmetic in float32. Input 0 is the result; input ``i + 1`` is operand ``i``.
    operands : tuple of str
        The kind of each operand. "channel" is a constant with one value per output channel, stored
        in the weights as ``operand<i>``. "tensor" is a run-time input with the shape of the output.
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
    own inputs come first, then the epilogue's tensor operands. Constants are not inputs; they are
    weights, which have names.

    Attributes
    ----------
    op : str
        Name of the op.
    facts : tuple of ValueFacts
        The value facts of each run-time input; REAL for an input whose values are unknown. Empty if
        nothing is known of any input.
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
        """The lowest of PRECISIONS that gives the same results as float32.

        The results must be the same for all input values that the facts allow.
        """
        return "fp32"

    @property
    def rounding(self) -> str:
        """The precision, one of PRECISIONS, to which float32 variants may round their results."""
        return "fp32"

    @property
    def sums_integers(self) -> bool:
        """Whether the op sums products of integers.

        These sums are exact in float32, unless an algorithm transforms the integers first, as
        Winograd's algorithm does.
        """
        return False

    @property
    def least_bytes(self) -> int:
        """Minimum memory traffic in bytes: every input, weight and output once."""
        weights = sum(4 * int(np.prod(shape)) for shape in self.weight_shapes.values())
        return weights + sum(spec.nbytes for spec in (*self.inputs, *self.outputs))

    def first_images(self, count: int) -> Problem:
        """Return the problem restricted to the first images of the batch.

        Candidates are checked on the smaller problem to save time. Its outputs are the first images
        of the full problem's outputs.

        Parameters
        ----------
        count : int
            Maximum number of images.

        Returns
        -------
        Problem
            The smaller problem, or this problem if it cannot be split by images.
        """
        return self

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw random inputs for checking and timing candidates.

        Parameters
        ----------
        rng : numpy.random.Generator
            Source of the random numbers.

        Returns
        -------
        list of numpy.ndarray
            One logical array for each input. If the facts of an input allow only a few values, its
            elements are drawn from those values. Otherwise floats are normally distributed, bytes
            are uniform from 0 to 255, and other integers are 0 or 1, which are valid indices.
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
        Specs of the tensors in the layouts and types that this variant reads and writes.
    precision : str
        One of PRECISIONS. A variant of precision "fp16" accumulates in float32, and its kernel
        rounds float32 inputs to float16. The problem's float32 tensors are stored as float16,
        except those that are float32 in the variant's `inputs` and `outputs`.
    workspace : int
        Bytes of scratch memory that a launch needs.
    builds_long : bool
        Whether the build takes a considerable part of a second or longer. Such variants are
        measured only if a plan would take them.
    """

    config: tuple[tuple[str, int | str], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "fp32"
    workspace: int = 0
    builds_long: bool = False

    def __getitem__(self, key: str) -> Any:
        """Return one setting of the config.

        Raises KeyError if no setting has this name.
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
            True for precision fp32. True for a lower precision if it represents all of the
            problem's values exactly; float16, for example, represents small integers exactly. False
            if the variant rounds a float32 input to float16, and float16 cannot represent all
            values of this input.
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
        Private data of the algorithm.
    packed : tuple of Buffer
        Device memory of the packed constants, kept alive by the state.
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
        Names of the op and of the algorithm.
    dense : bool
        Whether zero weights take as much time as others, because the algorithm exploits no
        sparsity.
    vendor : str
        The vendor library whose kernels run, such as cuDNN; empty for gossamer's own kernels.
    reads_parts, writes_parts : bool
        Whether the op's own inputs (`reads_parts`) or its only output (`writes_parts`) may be
        slices of the channels of larger NHWC tensors. An output may be a slice only if the epilogue
        has no tensor operands, or one and `operand_parts` is set. Let ``a`` be the largest power of
        2, up to 16, that divides the slice's bytes per pixel; the byte offset of the slice within a
        pixel is a multiple of ``a``. A concatenation reads and writes slices only along the channel
        axis.
    operand_parts : bool
        Whether the epilogue's tensor operand may also be such a slice if it is the only one.
    by_name_only : bool
        Whether the algorithm is used only if the option `only` names it. This is set for algorithms
        that have not been timed on a GPU yet, or that are worse than another algorithm.
    between_thin : bool
        Whether the algorithm is measured only in small networks and in networks with pruned or
        binary layers.
    polls : bool
        Whether the algorithm's threads busy-wait for a while after a launch, and thereby occupy
        cores that the generated code of the next layers needs.
    by_image : bool
        Whether `jobs` can also compute fewer images than the problem has. A plan then computes
        image by image, so that the tensors between layers stay in the caches.
    exact : bool
        Whether the algorithm sums bits exactly, as integers. Reports then state the precision
        EXACT, except for variants of precision fp16, which round the sums to float16.
    rounds_sums : bool
        Whether variants of precision fp16 round sums to float16 before the epilogue. Such variants
        are not used for layers that sum integers.
    """

    op: ClassVar[str]
    name: ClassVar[str]
    dense: ClassVar[bool] = True
    vendor: ClassVar[str] = ""
    reads_parts: ClassVar[bool] = False
    writes_parts: ClassVar[bool] = False
    operand_parts: ClassVar[bool] = False
    by_name_only: ClassVar[bool] = False
    between_thin: ClassVar[bool] = False
    polls: ClassVar[bool] = False
    by_image: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    rounds_sums: ClassVar[bool] = False

    def reads_parts_of(self, problem: Any) -> bool:
        """Return whether the inputs of a problem may be slices; see `reads_parts`."""
        return self.reads_parts

    def stated_precision(self, variant: Variant) -> str:
        """Return a variant's precision for reports: EXACT, or one of PRECISIONS."""
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
        """Return the version of the vendor library; empty if there is none."""
        return ""

    @abc.abstractmethod
    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        """Return the variants; within a precision, the expected fastest come first.

        Parameters
        ----------
        problem : Problem
            A problem that `supports` accepts.
        device : Device
            The device that is to compute it.

        Returns
        -------
        iterable of Variant
            At least one variant for every supported problem. Variants in float32 come first.
        """

    def variants_in(self, problem: Any, device: Device,
                    precisions: Sequence[str]) -> Iterable[Variant]:
        """Return the variants of the given precisions, in the order of `variants`.

        An algorithm overrides this method if listing the variants of all precisions is slow. Each
        returned variant must also be returned by `variants`, which is called when a plan file is
        read.

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
            The variants. An algorithm with many configs may list only the configs that it expects
            to be fast in precision ``precisions[-1]``.
        """
        return (variant for variant in self.variants(problem, device)
                if variant.precision in precisions)

    def expected_us(self, problem: Any, variant: Variant, device: Device) -> float | None:
        """Return the time that the algorithm's own model predicts.

        The tuner measures variants in increasing order of predicted time and skips the slowest
        ones. It calibrates the model's scale by comparing predicted with measured times.

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
            Microseconds; None if the algorithm has no model.
        """
        return None

    def launch_count(self, variant: Variant) -> int:
        """Return the number of kernels that a variant launches, 1 by default.

        The tuner adds `Device.queued_us` to `expected_us` for each launched kernel.
        """
        return 1

    def kernel_sources(self, problem: Any, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        """Return the kernels of a variant.

        An algorithm overrides this method if many variants share few kernels. The tuner then begins
        with the variants whose kernels are already compiled.

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
            The kernels; empty if they are unknown until `prepare` is called.
        """
        return ()

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job] | None:
        """Return the calls of generated code that `launch` makes.

        Returns None if `launch` does anything besides calling generated code. A plan merges the
        jobs of consecutive steps into one call.

        images: number of images in the buffers; by default the problem's number of images. Passed
        only to algorithms with `by_image`.
        """
        return None

    def work_ahead(self, problem: Any, variant: Variant,
                   device: Device) -> Callable[[Device], object] | None:
        """Return work that another process can do before `prepare`.

        Only algorithms of vendor libraries need this method: the device itself compiles the kernels
        of gossamer's own algorithms in other processes.

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
            A picklable function that does the slow steps of `prepare` and writes their results to
            the kernel cache. Another process calls the function with the same device. None if no
            step of `prepare` is slow.
        """
        return None

    @abc.abstractmethod
    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        """Pack the weights and compile the kernels.

        The method is called for each candidate and for each context. Repeated calls are cheap,
        because `Weights` caches packed arrays and the device caches kernels.

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
            Device memory of the tensors, in the layouts of the variant's specs.
        workspace : Buffer or None
            Scratch memory of at least the variant's `workspace` bytes; None if the variant needs
            no scratch memory.
        stream : Any
            A stream of the device; None is its default stream.
        """
        for step in state.launches:
            step.run(state.device, inputs, outputs, workspace, stream)
