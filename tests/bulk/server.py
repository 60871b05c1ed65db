"""A process of `gossamer serve` for the runs of this folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Served:
    """A server that takes requests. errors: what it has written to stderr so far."""

    def __init__(self, process: subprocess.Popen[str], port: int, errors: Path) -> None:
        self.process = process
        self.port = port
        self._errors = errors

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def resident_mb(self) -> float:
        """Returns the memory that the process and its children hold now, in MB."""
        threads = Path(f"/proc/{self.process.pid}/task")
        pids = " ".join([str(self.process.pid),
                         *[(each / "children").read_text() for each in threads.iterdir()]])
        return sum(int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])
                   for pid in pids.split()) / 1024


@contextmanager
def served(*words: str) -> Iterator[Served]:
    """Gives the body a server of these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "errors")
        with errors.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "gossamer", "serve", *words, "--port", "0"],
                stdout=subprocess.PIPE, stderr=file, text=True)
        assert process.stdout is not None
        line = ""
        while process.poll() is None and not line.startswith("listening"):
            line = process.stdout.readline()
        if process.poll() is not None:
            raise RuntimeError(f"the server did not start: {errors.read_text()}")
        try:
            yield Served(process, int(line.rpartition(":")[2]), errors)
        finally:
            process.kill()
            process.wait()
