"""`python -m tests.simulated --count 2000 --seed 0`: plans random networks on simulated devices. Of
four seeds, each makes networks of another kind: any blocks, attention and norms, pruned, signs."""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

import onnx

from tests.simulated.binary import binary_network, pruned_network
from tests.simulated.networks import random_network
from tests.simulated.plans import Case, check, token_case
from tests.simulated.tokens import token_network


def case_of(seed: int) -> tuple[Case, Callable[[int], onnx.ModelProto]]:
    """Returns a case, and the function that makes its network of the seed."""
    case = Case.of(seed)
    if seed % 4 == 1:
        return token_case(seed), token_network
    if seed % 4 == 2:
        return case, pruned_network
    if seed % 4 == 3:
        return replace(case, batch=seed // 4 % 3), binary_network
    return case, random_network


def attempt(seed: int) -> tuple[str, str]:
    """Returns the last line of an error and its trace; empty texts where there is none."""
    try:
        check(*case_of(seed))
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
                print(f"seed {futures[future]}: {case_of(futures[future])[0]}: {text}", flush=True)
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
