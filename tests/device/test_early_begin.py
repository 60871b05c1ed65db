"""Kernels that may begin before the one before them has ended wait for it themselves."""

import re
from pathlib import Path

import pytest

import gossamer
from gossamer.device.source import KernelSource

_FILES = [path for pattern in ("*.cl", "*.cu")
          for path in sorted(Path(gossamer.__file__).parent.rglob(pattern))]
_EARLY = [path for path in _FILES if KernelSource(path, "any").begins_early]


def test_most_kernels_of_plans_begin_early():
    assert len(_EARLY) > len(_FILES) / 2


@pytest.mark.parametrize("path", _EARLY, ids=lambda path: path.stem)
def test_each_kernel_of_the_file_lets_the_next_begin_and_waits(path):
    kernels = re.split(r"^KERNEL ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert kernels
    for kernel in kernels:
        calls = re.findall(r"pdl_(trigger_and_wait|trigger|wait)\(\);", kernel)
        assert calls[0].startswith("trigger"), calls
        assert calls[-1].endswith("wait"), calls
