"""Generated code for other x86 processors, which the processor of the tests runs as well."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from gossamer.device.native import processor as native

_X86 = (native.Processor("icelake-server", "+avx512vpopcntdq", 16, 32),
        native.Processor("skylake-avx512", "", 16, 32),
        native.Processor("haswell", "", 8, 16), native.Processor("x86-64", "", 4, 16))
"""AVX-512 with and without counts of bits, AVX2, and SSE2."""


def _run_here() -> list[native.Processor]:
    own = native.processor()
    return [own, *(other for other in _X86 if platform.machine() == "x86_64"
                   and other.lanes <= own.lanes
                   and (not other.features or other.features in own.features.split(",")))]


targets = st.deferred(lambda: st.sampled_from(_run_here()))
"""The processor of the test, and those whose code it runs."""


@contextmanager
def code_for(target: native.Processor) -> Iterator[None]:
    """Has code generated for another processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "processor", lambda: target)
        yield
