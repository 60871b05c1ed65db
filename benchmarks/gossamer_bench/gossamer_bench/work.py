"""The cases that are measured, and the items that make cases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gossamer.bench import work
from gossamer.bench.call_times import Load
from gossamer.bench.work import OWN, Setting
from gossamer_bench.contender import Alternative

_BITS = {"fp64": 64, "fp16": 16, "int8": 8, "b1": 1}
"""Bits of a number in memory, for precisions whose numbers do not have 32 bits."""


@dataclass(frozen=True)
class Case(work.Case):
    """A case whose contenders queue their work on a device.

    contenders: for the name of each contender, a function that makes the contender's alternatives,
    or raises AbsentError.
    sample_us: approximate duration of one sample of a contender's time, in microseconds.
    beside: functions that make similar cases with other weights. The key of a function is the name
    of the contender in the case that the function makes. These contenders are measured in the same
    run.
    """

    contenders: dict[str, Callable[[], list[Alternative]]] = field(default_factory=dict)
    sample_us: float = 20_000.0
    beside: Mapping[str, Callable[[], Case]] = field(default_factory=dict)

    def bytes_at(self, precision: str) -> int:
        """Returns the least bytes when the data in memory have this precision."""
        return self.least_bytes * _BITS.get(precision, 32) // 32

    def with_forced(self, names: Collection[str]) -> Case:
        """Returns the case with fewer plans of gossamer. A contender `gossamer:NAME` or
        `gossamer:NAME/FORM` stays if NAME is in `names`. NAME is an algorithm or one of
        OTHER_PLANS. FORM is a value of `variant` in the algorithm's configs, or a precision.
        gossamer's choice and the peers always stay."""
        def stays(contender: str) -> bool:
            return (not contender.startswith(f"{OWN}:")
                    or contender.removeprefix(f"{OWN}:").split("/")[0] in names)

        return replace(self, contenders={name: make for name, make in self.contenders.items()
                                         if stays(name)},
                       beside={name: make for name, make in self.beside.items() if stays(name)})


@dataclass(frozen=True)
class Item:
    """A case that is not prepared yet.

    make: function from the run's settings to the case, with weights, input and contenders.
    sparsity: function that returns the share of zeros among the weights. Where the share is not
    known before the case is made, there is no function (None).
    is_tuning: whether the time of planning is measured, with the effort in the item's name.
    is_ladder: whether the case has the rungs of the published ladder. Peers take part in such a
    case only where the command line names them.
    is_called: whether whole calls are timed on the host, from the call to its result
    (call_times.py).
    is_module: whether the peers are ways in which torch calls a module.
    """

    suite: str
    name: str
    batch: int
    make: Callable[[Setting], work.Case]
    is_layer: bool = False
    is_training: bool = False
    sparsity: Callable[[], float] | None = None
    is_tuning: bool = False
    is_ladder: bool = False
    is_called: bool = False
    is_module: bool = False


@dataclass(frozen=True)
class Files:
    """Options of the command line that only some suites use.

    models: files of networks, or names of networks in the zoo.
    data: folder of published sparse weights.
    efforts: efforts whose planning is timed; empty for the suite's own efforts.
    loads: the loads under which calls are timed. Each has a number of threads, a rate and a
    duration.
    images: folder of pictures that are run.
    modules: patterns of names of torch's modules; None for the suite's own modules.
    """

    models: tuple[Path, ...] = ()
    data: Path | None = None
    efforts: tuple[str, ...] = ()
    loads: tuple[Load, ...] = (Load(),)
    images: Path | None = None
    modules: str | None = None
