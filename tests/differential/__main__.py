"""`python -m tests.differential --count 1000 --seed 0`: runs random networks by gossamer, beside
ONNX Runtime and ONNX's reference. Networks that differ are written to build/differential."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from pathlib import Path

from tests.differential.check import WAYS, Difference, cause, work

FOLDER = Path("build/differential")
STUCK_SECONDS = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nan", action="store_true", help="inputs may hold NaN")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    start, seed, stop = time.monotonic(), arguments.seed, arguments.seed + arguments.count
    counts: dict[str, Counter[str]] = {"without a known cause": Counter(), "known": Counter()}
    context = multiprocessing.get_context("spawn")
    while seed < stop:
        ours, theirs = context.Pipe(False)
        worker = context.Process(target=work, args=(
            range(seed, stop), arguments.ways, arguments.nan, theirs))
        worker.start()
        theirs.close()
        try:
            while seed < stop:
                if not ours.poll(STUCK_SECONDS):
                    raise EOFError
                if (found := ours.recv()) is None:
                    seed += 1
                else:
                    count(found, counts)
        except EOFError:
            worker.kill()
            worker.join()
            count(Difference(seed, "", f"the process ended with {worker.exitcode}"), counts)
            seed += 1
        worker.join()
    unknown = sum(counts["without a known cause"].values())
    print(f"{arguments.count} networks, seeds {arguments.seed} to {stop - 1}, {unknown} differences"
          f" without a known cause, {time.monotonic() - start:.0f} s")
    for title, group in counts.items():
        for kind, number in group.most_common():
            print(f"{number:5} {title}: {kind}")
    return 1 if unknown else 0


def count(found: Difference, counts: dict[str, Counter[str]]) -> None:
    """Counts a difference; prints it, and writes its network, where its cause is not known."""
    if reason := cause(found):
        counts["known"][reason] += 1
        return
    counts["without a known cause"][f"{found.kind}: {found.where.split('-')[0]}"] += 1
    path = FOLDER / f"{found.seed}-{found.way}.onnx"
    path.write_bytes(found.model)
    print(f"{found} ({path})", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
