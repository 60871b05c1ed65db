"""A builder of graphs for the tests of models."""

from __future__ import annotations

import pytest

from tests.model.graph_builder import Builder


@pytest.fixture
def build() -> Builder:
    """A graph without layers, whose only output is y."""
    return Builder()
