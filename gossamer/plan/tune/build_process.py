"""A process that builds candidates, seen from the process that starts it."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.io.python_process import PipedProcess
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.ops.weights import PackedArray, Weights
from gossamer.plan.prepare import BuiltForms
from gossamer.plan.tune.build_messages import (
    Built,
    Failed,
    Ready,
    Refused,
    Reply,
    Request,
    WantsConstants,
    Work,
    receive,
    send,
)

START_SECONDS = 30.0
"""Seconds after which a process that has not started is ended."""

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
"""Limits of libraries for linear algebra: each process computes on one processor."""


class BuildHereError(GossamerError):
    """No other process builds a candidate; the process that asked for it can build it itself."""


class BuildProcessError(GossamerError):
    """A process that built a candidate has ended before it was done."""


class BuildProcess:
    """A running process that builds one candidate at a time for a device.

    make_device: makes the device there. Raises BuildHereError where the process does not start.
    """

    def __init__(self, make_device: Callable[[], Device]) -> None:
        if not sys.executable:
            raise BuildHereError("this Python does not say where its program lies (sys.executable "
                                 "is empty), so candidates are built in this process")
        try:
            self._process = PipedProcess("gossamer.plan.tune.build_worker", _ONE_THREAD)
        except OSError as error:
            raise BuildHereError(f"cannot start a process that builds candidates: {error}"
                                 ) from None
        impatient = threading.Timer(START_SECONDS, self.end)
        impatient.daemon = True
        impatient.start()
        try:
            reply = self._asked(make_device)
        except Exception:
            # it has ended, or what answers is no program of gossamer's
            reply = Refused(f"a process that builds candidates {self._process.ending()}")
        finally:
            impatient.cancel()
        if not isinstance(reply, Ready):
            self.close()
            raise BuildHereError(getattr(reply, "reason", f"{sys.executable} gives no sensible "
                                                          "answer when it is to build candidates"))

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.has_ended

    def build(self, algorithm: Algorithm, problem: Problem, variant: Variant, weights: Weights,
              held: Mapping[str, PackedArray]) -> BuiltForms:
        """Returns what the process built for a candidate.

        held: packed forms that need not be sent again. Raises BuildHereError where it refuses the
        candidate, BuildProcessError where it ends, and the error of building where that fails.
        """
        try:
            candidate = pickle.dumps((algorithm, problem, variant))
        except Exception as error:
            raise BuildHereError(f"{algorithm.name} cannot be sent to another process: {error}"
                                 ) from None
        request = Request(candidate, weights.digest, weights.layer, frozenset(held))
        try:
            reply: Reply = self._asked(request)
            if isinstance(reply, WantsConstants):
                reply = self._asked(weights.arrays)
        except Exception:
            raise BuildProcessError(
                f"the process that built {algorithm.name} {variant.config_text} for layer "
                f"{weights.layer} {self._process.ending()}") from None
        if isinstance(reply, Failed):
            raise reply.error
        if isinstance(reply, Refused):
            raise BuildHereError(reply.reason)
        assert isinstance(reply, Built)
        kernel_cache.adopt(reply.kernels)
        return BuiltForms({key: held[key] if form is None else form
                           for key, form in reply.forms.items()}, reply.seconds)

    def work(self, function: Callable[[Device], object], what: str) -> BuiltForms:
        """Returns when the process has called a function with its device. what: words for it.
        Raises BuildHereError where that fails, and BuildProcessError where the process ends."""
        try:
            reply: Reply = self._asked(Work(pickle.dumps(function)))
        except Exception:
            raise BuildProcessError(
                f"the process that was asked for {what} {self._process.ending()}") from None
        if not isinstance(reply, Built):
            raise BuildHereError(getattr(reply, "reason", "no sensible answer"))
        kernel_cache.adopt(reply.kernels)
        return BuiltForms({}, reply.seconds)

    def _asked(self, message: Any) -> Any:
        send(self._process.stdin, message)
        return receive(self._process.stdout)

    def end(self) -> None:
        """Ends the process and those that it started, also in the middle of building; another
        thread may wait for it."""
        self._process.end()

    def close(self) -> None:
        """Ends the process and frees what belongs to it."""
        self._process.close()
