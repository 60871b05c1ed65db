"""`python -m tests.simulated --count 2000 --seed 0`: plans random networks on simulated devices."""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulated.plans import Case, check


def attempt(seed: int) -> tuple[str, str]:
    """Returns the last line of an error and its trace; empty texts where there is none."""
    try:
        check(Case.of(seed))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (f"{type(error).__name__} in {place.filename.split('/')[-1]}: {place.name}: "
                f"{str(error)[:150]}", traceback.format_exc())
    return "", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    start = time.monotonic()
    kinds: Counter[str] = Counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        futures = {pool.submit(attempt, seed): seed
                   for seed in range(arguments.seed, arguments.seed + arguments.count)}
        for future in as_completed(futures):
            text, trace = future.result()
            if text:
                kinds[text.split(":")[0] + text.split(":")[1]] += 1
                print(f"seed {futures[future]}: {Case.of(futures[future])}: {text}", flush=True)
                if sum(kinds.values()) == 1:
                    print(trace)
    failed = sum(kinds.values())
    print(f"{arguments.count} plans, seeds {arguments.seed} to "
          f"{arguments.seed + arguments.count - 1}, {failed} failures, "
          f"{time.monotonic() - start:.0f} s")
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
