"""A process that compiles kernels by NVRTC for the process that started it, which asks on its
standard input; see compile_processes.py."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from gossamer.device.cuda.compile_processes import AT_ONCE
from gossamer.device.cuda.nvrtc import compile_cubin
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError

_NICE = 5
"""How much the process stands back behind the one that asks, which times meanwhile."""


def main() -> None:
    """Answers each kernel with its number and its cubin and the processor seconds that it took, or
    the text of an error, until the other process closes the pipe. The first answer says that the
    process is ready."""
    os.nice(_NICE)
    lock = threading.Lock()
    with os.fdopen(os.dup(1), "wb") as answers, ThreadPoolExecutor(AT_ONCE) as pool:
        # what a library prints must not come between two answers
        os.dup2(2, 1)

        def send(number: int, answer: tuple[bytes, float] | str) -> None:
            with lock:
                pickle.dump((number, answer), answers)
                answers.flush()

        def answer(number: int, source: KernelSource, architecture: str) -> None:
            start = time.thread_time()
            try:
                cubin, _ = compile_cubin(source, architecture)
                send(number, (cubin, time.thread_time() - start))
            except CompileError as error:
                send(number, str(error))
            except Exception as error:  # whoever asks waits for some answer
                send(number, f"{type(error).__name__}: {error}")

        send(-1, "")
        while True:
            try:
                number, source, architecture = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pool.submit(answer, number, source, architecture)


if __name__ == "__main__":
    main()
