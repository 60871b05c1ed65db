"""A short run of tools/soak.py: kills, two compiles at once, and measurements that are moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def soak(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "tools" / "soak.py", *words], text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@posix
def test_the_cache_survives_kills_pairs_and_moves() -> None:
    # of these kills three come while a file is being written
    done = soak("--count", "6", "--pairs", "1", "--seed", "3", "--device", "host")
    assert done.returncode == 0, done.stdout + done.stderr
    kills, at_once, export = done.stdout.splitlines()
    assert kills.startswith("kills: 6 on host; ")
    assert at_once.startswith("at once: 1 pair, ")
    assert export.endswith(" of host are equal after an import")


@posix
def test_what_cannot_be_done_is_told() -> None:
    done = soak("--count", "0")
    assert done.returncode == 2 and "--count 0: expected 1 or more" in done.stderr
    done = soak("--count", "1", "--device", "tpu:0")
    assert done.returncode == 1 and "there is no device 'tpu:0'" in done.stdout
