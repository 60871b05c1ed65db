"""Reads many mutations of every reader: python -m tests.fuzz --count 20000."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.harness import Counts, distinct, fuzz, table
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="READER", help="by default all of them")
    parser.add_argument("--count", type=int, default=20000, help="mutations of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="after which a reader begins no more mutations")
    parser.add_argument("--keep", action="store_true",
                        help="minimise failures and store them in tests/fuzz/kept")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in TARGETS:
            parser.error(f"no reader {name!r}: expected one of {', '.join(TARGETS)}")
    results: dict[str, Counts] = {}
    for name in arguments.names or TARGETS:
        counts = results[name] = fuzz(name, arguments.count, arguments.seed, arguments.start,
                                      arguments.keep, arguments.seconds)
        print(table({name: counts}).splitlines()[1], flush=True)
        for failure, number in distinct(counts).most_common():
            example = next(text for text in counts.failures if text.startswith(failure))
            print(f"    {number} x {example} (mutation {counts.failures[example][0]})", flush=True)
    print(table(results))
    return int(any(counts.failed for counts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
