"""A process that builds candidates, seen from the process that starts it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.errors import GossamerError
from gossamer.io import python_process
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

_ENDS_SECONDS = 5.0
"""Seconds that a process may take to end after its pipe was closed."""


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
        self._resources = contextlib.ExitStack()
        try:
            self._errors = self._resources.enter_context(
                tempfile.TemporaryFile())  # noqa: SIM115, the stack closes it
            # in a group of its own the process gets no interrupt from the keyboard
            self._process = subprocess.Popen(
                python_process.command("gossamer.plan.tune.build_worker"),
                env={**python_process.environment(), **_ONE_THREAD}, process_group=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        except OSError as error:
            self._resources.close()
            raise BuildHereError(f"cannot start a process that builds candidates: {error}"
                                 ) from None
        impatient = threading.Timer(START_SECONDS, self.end)
        impatient.daemon = True
        impatient.start()
        try:
            reply = self._asked(make_device)
        except Exception:
            # it has ended, or what answers is no program of gossamer's
            reply = Refused(f"a process that builds candidates {self._ending()}")
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
        return self._process.poll() is not None

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
                f"{weights.layer} {self._ending()}") from None
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
            raise BuildProcessError(f"the process that was asked for {what} {self._ending()}"
                                    ) from None
        if not isinstance(reply, Built):
            raise BuildHereError(getattr(reply, "reason", "no sensible answer"))
        kernel_cache.adopt(reply.kernels)
        return BuiltForms({}, reply.seconds)

    def _asked(self, message: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        send(self._process.stdin, message)
        return receive(self._process.stdout)

    def end(self) -> None:
        """Ends the process and those that it started, also in the middle of building; another
        thread may wait for it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process and frees what belongs to it."""
        self.end()
        self._process.wait()
        self._resources.close()
        for stream in (self._process.stdin, self._process.stdout):
            # what is left in a buffer cannot be written to a process that has ended
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _ending(self) -> str:
        """Waits for a process whose pipe does not work any more, and returns how it ended."""
        try:
            status = self._process.wait(_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            self._process.wait()
            return "does not answer"
        return python_process.ending(status, self._errors)
