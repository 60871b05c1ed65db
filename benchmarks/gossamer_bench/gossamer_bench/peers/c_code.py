"""Peers in C, which are built when they are first used."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from gossamer.bench.work import AbsentError
from gossamer.device.kernel_cache import cached
from gossamer.device.registry import find

OPTIONS = ("-O3", "-march=native")


@cache
def compiler() -> str:
    """Returns the C compiler's name and version. Raises AbsentError where there is no compiler."""
    if shutil.which("cc") is None:
        raise AbsentError("there is no C compiler: cc is not on the PATH")
    return f"cc {_run('cc', '-dumpfullversion', '-dumpversion').strip()}"


@cache
def library(folder: Path) -> ctypes.CDLL:
    """Returns the C code of a folder, built with OpenMP for this processor or loaded from the cache
    folder. Raises AbsentError where the code cannot be built."""
    sources = sorted(folder.glob("*.c"))
    command = ["cc", *OPTIONS, "-fopenmp", "-shared", "-fPIC", *map(str, sources)]

    with tempfile.TemporaryDirectory() as built:
        target = Path(built) / f"{folder.name}.so"

        def build() -> bytes:
            _run(*command, "-o", str(target), "-lm")
            return target.read_bytes()

        texts = [path.read_text() for path in (*sources, *sorted(folder.glob("*.h")))]
        target.write_bytes(cached(
            [folder.name, compiler(), find("host").description, *command, *texts], build)[0])
        return ctypes.CDLL(str(target))


def _run(*command: str) -> str:
    """Returns the output of a command. Raises AbsentError where the command fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True,
                              timeout=120).stdout
    except subprocess.CalledProcessError as error:
        raise AbsentError(f"{command[0]} fails: {_first_error(error.stderr)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbsentError(f"{command[0]} fails: {error}") from None


def _first_error(text: str) -> str:
    """Returns the first line with "error" in a compiler's output, or the output's first line where
    no line has "error"."""
    lines = text.strip().splitlines() or ["it does not say why"]
    return next((line for line in lines if "error" in line), lines[0])
