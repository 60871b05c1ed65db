"""A process that compiles kernels by NVRTC for the process that started it, which asks on its
standard input; see compile_processes.py."""

from __future__ import annotations

import os
import pickle
import sys
import time

from gossamer.device.cuda.compile_processes import READY
from gossamer.device.cuda.nvrtc import compile_cubin
from gossamer.errors import CompileError


def main() -> None:
    """Answers each kernel with its cubin and the processor seconds that it took, or with the text
    of an error, until the other process closes the pipe."""
    with os.fdopen(os.dup(1), "wb") as answers:
        # what a library prints must not come between two answers
        os.dup2(2, 1)
        answer: tuple[bytes, float] | str = READY
        while True:
            pickle.dump(answer, answers)
            answers.flush()
            try:
                source, architecture = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            start = time.process_time()
            try:
                cubin, _ = compile_cubin(source, architecture)
                answer = cubin, time.process_time() - start
            except CompileError as error:
                answer = str(error)


if __name__ == "__main__":
    main()
