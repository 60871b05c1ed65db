"""Runs all of ONNX's backend tests: python -m tests.onnx_backend.

Each is run as it is, and again with every input but the first as a constant. ONNX Runtime of the
same installation runs them too: what it passes, gossamer should pass.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.onnx_backend.cases import Case, cases
from tests.onnx_backend.run import PASSED, by_gossamer, by_onnxruntime


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="TEXT",
                        help="run only the tests whose names hold one of these")
    parser.add_argument("--device", default="host")
    parser.add_argument("--list", action="store_true", help="name each test that fails")
    arguments = parser.parse_args()
    chosen = [case for case in cases()
              if not arguments.patterns or any(text in case.name for text in arguments.patterns)]
    with_constants = [changed for case in chosen if (changed := case.as_initializers())]
    missed = 0
    for title, group in (("as they are", chosen),
                         ("with constants as initializers", with_constants)):
        missed += _run(title, group, arguments.device, arguments.list)
    return int(missed > 0)


def _run(title: str, group: list[Case], device: str, lists: bool) -> int:
    """Runs some cases, prints how many pass and why others do not, and returns how many ONNX
    Runtime alone passes."""
    ours = {case.name: by_gossamer(case, device) for case in group}
    theirs = {case.name: by_onnxruntime(case) for case in group}
    passed = sum(outcome == PASSED for outcome in ours.values())
    missed = [name for name, outcome in ours.items()
              if outcome != PASSED and theirs[name] == PASSED]
    print(f"{len(group)} tests {title}: gossamer passes {passed}, ONNX Runtime "
          f"{sum(outcome == PASSED for outcome in theirs.values())}; {len(missed)} by ONNX Runtime "
          "alone")
    for outcome, number in Counter(ours[name] for name in missed).most_common():
        print(f"  {number:5}  {outcome}")
    both = Counter(outcome for name, outcome in ours.items()
                   if outcome != PASSED and theirs[name] != PASSED)
    print(f"  {sum(both.values()):5}  fail with both")
    wrong = sum(outcome.startswith(("wrong", "crashed")) for outcome in ours.values())
    print(f"  {wrong:5}  wrong or crashed")
    if lists:
        for name, outcome in ours.items():
            if outcome != PASSED:
                print(f"    {name}: {outcome}; ONNX Runtime: {theirs[name]}")
    sys.stdout.flush()
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
