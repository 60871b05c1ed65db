"""Times MobileNetV2's plans beside the best ones that take nothing of vendors' libraries.

    python -m tests.plan.without_vendors --batch 1,64 --precision fp16 --effort quick
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import gossamer
from gossamer.measure import interleave
from gossamer.ops.registry import OPS
from gossamer.plan.plan import Plan
from tests.plan.caches import empty_cache


@contextmanager
def no_vendors() -> Iterator[None]:
    """Lets plans that are made meanwhile choose among gossamer's own algorithms, as where no
    vendor's library is installed. Their measurements are kept apart: beside vendors' libraries
    some candidates were not tried, as they could not be of use."""
    before = dict(OPS)
    with empty_cache():
        try:
            for name, op in before.items():
                OPS[name] = replace(op, algorithms=tuple(
                    algorithm for algorithm in op.algorithms if not algorithm.vendor))
            yield
        finally:
            OPS.update(before)


def vendor_steps(plan: Plan, batch: int) -> int:
    """Returns how many steps of a plan a vendor's library computes."""
    return sum(bool(step.algorithm.vendor) for step in plan.program(batch).steps)


def planned(options: argparse.Namespace, batch: int) -> Plan:
    """Returns the plan of a batch size, ready to run."""
    plan = gossamer.compile("mobilenet_v2", options.device, effort=options.effort,
                            precision=options.precision)
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
        plans = [planned(options, batch)]
        with no_vendors():
            plans.append(planned(options, batch))
        every, own = interleave([plan.context(batch).ready() for plan in plans], sample_us=2e4)
        print(f"batch {batch}, {options.precision}: {every.median_us:.1f} us with "
              f"{vendor_steps(plans[0], batch)} of {len(plans[0].program(batch).steps)} steps by "
              f"vendors' libraries, {own.median_us:.1f} us without "
              f"({own.median_us / every.median_us - 1:+.1%})", flush=True)


if __name__ == "__main__":
    main()
