"""Times MobileNetV2's plans beside the best ones that take nothing of vendors' libraries.

    python -m tests.plan.without_vendors --batch 1,64 --precision fp16 --effort quick
"""

from __future__ import annotations

import argparse

import gossamer
from gossamer.measure import interleave
from gossamer.plan.plan import Plan
from tests.plan.caches import empty_cache


def vendor_steps(plan: Plan, batch: int) -> int:
    """Returns how many steps of a plan a vendor's library computes."""
    return sum(bool(step.algorithm.vendor) for step in plan.program(batch).steps)


def planned(options: argparse.Namespace, batch: int, vendors: bool) -> Plan:
    """Returns the plan of a batch size, ready to run. Measurements are kept apart: beside vendors'
    libraries some candidates are not tried, as they cannot be of use."""
    with empty_cache():
        plan = gossamer.compile("mobilenet_v2", options.device, effort=options.effort,
                                precision=options.precision, vendors=vendors)
        plan.context(batch)
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--effort", default="quick")
    options = parser.parse_args()
    for batch in map(int, options.batch.split(",")):
        plans = [planned(options, batch, vendors) for vendors in (True, False)]
        every, own = interleave([plan.context(batch).ready() for plan in plans], sample_us=2e4)
        print(f"batch {batch}, {options.precision}: {every.median_us:.1f} us with "
              f"{vendor_steps(plans[0], batch)} of {len(plans[0].program(batch).steps)} steps by "
              f"vendors' libraries, {own.median_us:.1f} us without "
              f"({own.median_us / every.median_us - 1:+.1%})", flush=True)


if __name__ == "__main__":
    main()
