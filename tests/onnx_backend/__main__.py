"""Runs all of ONNX's backend tests: python -m tests.onnx_backend.

Each is run as it is, and again with every input but the first as a constant. ONNX Runtime of the
same installation runs them too: what it passes, gossamer should pass. --draw FILE.md makes
docs/onnx-tests.md of what became of them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.onnx_backend.page import Outcomes, page
from tests.onnx_backend.run import PASSED, Case, by_gossamer, by_onnxruntime, cases


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_backend", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="TEXT",
                        help="run only the tests whose names hold one of these")
    parser.add_argument("--device", default="host")
    parser.add_argument("--list", action="store_true", help="name each test that fails")
    parser.add_argument("--draw", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    chosen = [case for case in cases()
              if not arguments.patterns or any(text in case.name for text in arguments.patterns)]
    with_constants = [changed for case in chosen if (changed := case.as_initializers())]
    groups = {title: _outcomes(group, arguments.device)
              for title, group in (("as they are", chosen),
                                   ("with constants as initializers", with_constants))}
    for title, outcomes in groups.items():
        _print(title, outcomes, arguments.list)
    if arguments.draw is not None:
        arguments.draw.write_text(page(groups, arguments.device))
    return int(any(_missed(outcomes) for outcomes in groups.values()))


def _outcomes(group: Sequence[Case], device: str) -> Outcomes:
    return {case.name: (by_gossamer(case, device), by_onnxruntime(case)) for case in group}


def _missed(outcomes: Outcomes) -> list[str]:
    """Return the outcomes of gossamer of what ONNX Runtime alone passes."""
    return [ours for ours, theirs in outcomes.values() if ours != PASSED and theirs == PASSED]


def _print(title: str, outcomes: Outcomes, lists: bool) -> None:
    """Print how many cases pass and why others do not."""
    missed = _missed(outcomes)
    print(f"{len(outcomes)} tests {title}: gossamer passes "
          f"{sum(ours == PASSED for ours, _ in outcomes.values())}, ONNX Runtime "
          f"{sum(theirs == PASSED for _, theirs in outcomes.values())}; {len(missed)} by ONNX "
          "Runtime alone")
    for outcome, number in Counter(missed).most_common():
        print(f"  {number:5}  {outcome}")
    both = sum(PASSED not in pair for pair in outcomes.values())
    print(f"  {both:5}  fail with both")
    wrong = sum(ours.startswith(("wrong", "crashed")) for ours, _ in outcomes.values())
    print(f"  {wrong:5}  wrong or crashed")
    if lists:
        for name, (ours, theirs) in outcomes.items():
            if ours != PASSED:
                print(f"    {name}: {ours}; ONNX Runtime: {theirs}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
