"""A device that records kernels, for the tests of algorithms."""

from __future__ import annotations

import pytest

from tests.ops.recording import RecordingDevice


@pytest.fixture
def recorder() -> RecordingDevice:
    """A device that has recorded nothing."""
    return RecordingDevice()
