"""Fills torch.compile's caches on disk, so that a benchmark that follows finds its networks there.

    python benchmarks/compile_ahead.py SUITE:CASE[:BATCH:PRECISION]

Without them batches 1 and 64 in float16 are compiled.
"""

from __future__ import annotations

import sys

from gossamer.bench.suites.catalogue import select
from gossamer.bench.work import Setting, tuners
from gossamer.device.registry import find

PEER = "torch-compile-graph"


def compile_ahead(suite: str, case: str, batch: int, precision: str) -> None:
    device = find("cuda:0")
    (item,) = select([suite], [batch], case, [], None, None, "quick")
    setting = Setting(device, tuners(device, "quick", choice_only=True), (PEER,), (precision,),
                      "quick")
    item.make(setting).contenders[PEER]()


if __name__ == "__main__":
    parts = sys.argv[1].split(":")
    for batch, precision in [(int(parts[2]), parts[3])] if len(parts) == 4 else [
            (1, "fp16"), (64, "fp16")]:
        compile_ahead(parts[0], parts[1], batch, precision)
