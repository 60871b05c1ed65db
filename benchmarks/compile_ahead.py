"""Fills torch.compile's caches on disk, so that a benchmark that follows finds its networks there.

    python benchmarks/compile_ahead.py SUITE:CASE:BATCH:PRECISION
"""

from __future__ import annotations

import sys

from gossamer.bench.work import Setting, tuners
from gossamer.device.registry import find
from gossamer_bench.suites.catalogue import select

PEER = "torch-compile-graph"


def compile_ahead(suite: str, case: str, batch: int, precision: str) -> None:
    device = find("cuda:0")
    (item,) = select([suite], [batch], case, [], None, None, "quick")
    setting = Setting(device, tuners(device, "quick", choice_only=True), (PEER,), (precision,),
                      "quick")
    item.make(setting).contenders[PEER]()


if __name__ == "__main__":
    suite, case, batch, precision = sys.argv[1].split(":")
    compile_ahead(suite, case, int(batch), precision)
