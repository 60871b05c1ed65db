"""The program of a process that builds candidates: it packs weights and compiles kernels for a
device that it never touches, or does the work of a vendor's library on the device.

It runs as `python -m gossamer.plan.tune.build_worker`, started by build_process.py. It reads
requests from standard input and writes replies to standard output. It ends with the process that
started it, even where that is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gossamer.device import kernel_cache
from gossamer.device.base import Buffer, Device
from gossamer.device.optional import NeedsDeviceError
from gossamer.errors import GossamerError, first_line
from gossamer.ops.lru_cache import LruCache
from gossamer.ops.weights import Pack, Packed, PackedArray, Weights, build_clock
from gossamer.plan.tune.build_messages import (
    Built,
    Constants,
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

MOST_BYTES = 2**28
"""Bytes of constants and packed forms that a process keeps; those of the layers that were least
recently built for are dropped first."""

_SCORE = "500"
"""How much sooner than other processes this one is killed where memory runs out, out of 1000."""


class KeptWeights(Weights):
    """A layer's constants with their packed forms, which stay in this process.

    used: names and forms of those that the present candidate asked for, None for forms that only
    the device can make. packing_seconds: processor seconds that packing took for this candidate.
    """

    def __init__(self, arrays: Constants, device: Device, layer: str, digest: str) -> None:
        super().__init__(arrays, device, layer)
        self.digest = digest
        self._kept: dict[str, tuple[Packed, PackedArray | None]] = {}
        self.start_candidate()

    def start_candidate(self) -> None:
        """Forgets what the candidate before asked for."""
        self.used: dict[str, PackedArray | None] = {}
        self.packing_seconds = 0.0

    def form(self, key: str, pack: Pack) -> Packed:
        if key not in self._kept:
            self._kept[key] = self._made(pack)
            self.packing_seconds += self._kept[key][0].seconds
        packed, self.used[key] = self._kept[key]
        return packed

    def _made(self, pack: Pack) -> tuple[Packed, PackedArray | None]:
        start = build_clock(self._device)
        result = pack(self.arrays)
        if isinstance(result, Buffer):
            return Packed(result, build_clock(self._device) - start), None
        array = np.ascontiguousarray(result)
        seconds = build_clock(self._device) - start
        buffer = self._device.upload(array, f"weights of {self.layer}")
        return Packed(buffer, seconds), PackedArray(array, seconds)

    @property
    def host_bytes(self) -> int:
        """Bytes of the constants and of their packed forms in this process."""
        forms = [form.array for _, form in self._kept.values() if form is not None]
        return sum(array.nbytes for array in (*self.arrays.values(), *forms))


class BuildWorker:
    """Builds one candidate after another for a device.

    receive_constants: asks for the constants of the layer that is built for, and returns them.
    """

    def __init__(self, device: Device, receive_constants: Callable[[], Constants]) -> None:
        self._device = device
        self._receive_constants = receive_constants
        self._weights: LruCache[KeptWeights] = LruCache(
            MOST_BYTES, lambda weights: weights.host_bytes)

    def reply(self, request: Request | Work) -> Reply:
        """Builds a candidate, or does other work, and returns what became of that."""
        return self._done(request) if isinstance(request, Work) else self._built(request)

    def _done(self, work: Work) -> Reply:
        start = time.process_time()
        try:
            pickle.loads(work.function)(self._device)
        except Exception as error:
            return Refused(f"a process that builds failed: {first_line(error)}")
        return Built({}, time.process_time() - start, kernel_cache.hand_over())

    def _built(self, request: Request) -> Reply:
        try:
            algorithm, problem, variant = pickle.loads(request.candidate)
        except Exception as error:
            return Refused(f"a process that builds cannot import a candidate: {error}")
        weights = self._weights.of(request.digest, lambda: KeptWeights(
            self._receive_constants(), self._device, request.layer, request.digest))
        weights.start_candidate()
        start = time.process_time()
        try:
            state = algorithm.prepare(weights, problem, variant, self._device)
        except NeedsDeviceError as error:
            return Refused(str(error))
        except Exception as error:
            return Failed(_portable(error))
        seconds = max(time.process_time() - start - weights.packing_seconds, 0.0)
        seconds += max((launch.kernel.subprocess_seconds for launch in state.launches), default=0.0)
        forms = {key: None if key in request.held else form
                 for key, form in weights.used.items() if form is not None}
        return Built(forms, seconds, kernel_cache.hand_over())


def main() -> None:
    """Builds until the process that started this one ends or closes the pipe."""
    # an interrupt from the keyboard is for the process that started this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_SCORE)
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "wb")
    # what libraries print must not come between the replies
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        device = inbox.get()()
    except Exception as error:
        send(replies, Refused(f"a process that builds does not start: {first_line(error)}"))
        return

    def constants() -> Constants:
        send(replies, WantsConstants())
        arrays: Constants = inbox.get()
        return arrays

    send(replies, Ready())
    worker = BuildWorker(device, constants)
    while True:
        send(replies, worker.reply(inbox.get()))


def _read(requests: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    """Reads messages in a thread of its own, so that the process ends with the one that started it
    in the middle of building as well."""
    try:
        while True:
            inbox.put(receive(requests))
    except EOFError:
        if os.getpgrp() == os.getpid():
            # processes that assemble for this one end with it
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """Returns an error that can be pickled: this one, or another with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GossamerError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
