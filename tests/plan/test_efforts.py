"""The runner that compares the plans of several efforts."""

from __future__ import annotations

import argparse
import re

import pytest

from tests.model.onnx_models import save
from tests.plan.efforts import compare
from tests.plan.small import small


def test_each_plan_is_timed_beside_those_before_it(
        tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(device="host", precision="fp32", plans="quick:60,quick", data=None)
    path = save(small(), tmp_path)
    compare(str(path), 2, options)
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r".*, batch 2, fp32: quick:60 [\d.]+ us \(\+0.0%\), planned in [\d.]+ s, "
                        r"device busy \d+%", first)
    assert second.count("planned in") == 2 and "; quick " in second
