"""Times the plans of several efforts, and of budgets, of networks beside one another.

    python -m tests.plan.efforts mobilenet_v2 FILE... --batch 1,64 --plans quick:10,quick,normal,max

A plan is an effort, or an effort with a budget in seconds. Each is made in a process of its own,
whose time counts from a network in memory to the plan of the batch size. One with a budget has an
empty cache; the others of a network and batch size follow one another with one cache, which is
empty at first. All are timed together in this process. Beside files and names of the zoo,
resnet50-dlmc-0.90 and the like are networks where --data is the folder of their masks.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import gossamer
from gossamer.measure import interleave
from gossamer.model.graph import Graph
from gossamer.plan.plan import Plan
from gossamer_bench.suites.sparse_networks import dlmc_networks
from tests.plan.caches import empty_cache


@dataclass(frozen=True)
class Planned:
    """A plan that is ready to run, and the time that making it took."""

    name: str
    plan: Plan
    seconds: float


def network(name: str, data: Path | None) -> Graph | str:
    """Returns a network: one with masks where there is such a name, else what `load` takes."""
    makers = {} if data is None else dlmc_networks("efforts", data)
    return makers[name]().graph if name in makers else name


def make(name: str, wanted: str, batch: int, options: argparse.Namespace,
         path: Path) -> float:
    """Writes the plan of a network and of an effort like quick or quick:10 to a file. Returns the
    seconds that making it took."""
    model = network(name, options.data)
    if isinstance(model, str):
        model = gossamer.load(model)
    effort, _, budget = wanted.partition(":")
    start = time.monotonic()
    plan = gossamer.compile(model, options.device, effort=effort, precision=options.precision,
                            budget=float(budget) if budget else None)
    plan.context(batch)
    seconds = time.monotonic() - start
    plan.save(path)
    return seconds


def planned(name: str, wanted: str, batch: int, options: argparse.Namespace) -> Planned:
    """Returns a plan that another process made."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "made.plan"
        # a process that plans starts others, which daemonic ones may not
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            seconds = process.submit(make, name, wanted, batch, options, path).result()
        return Planned(wanted, Plan.load(path, options.device), seconds)


def compare(name: str, batch: int, options: argparse.Namespace) -> None:
    """Makes and times the plans of one network and batch size; each new one is timed together with
    all before it."""
    plans: list[Planned] = []
    with empty_cache():
        for wanted in options.plans.split(","):
            with empty_cache() if ":" in wanted else nullcontext():
                plans.append(planned(name, wanted, batch, options))
            timings = interleave([made.plan.context(batch).ready() for made in plans],
                                 sample_us=2e4)
            best = min(timing.median_us for timing in timings)
            print(f"{name}, batch {batch}, {options.precision}: " + "; ".join(
                f"{made.name} {timing.median_us:.1f} us ({timing.median_us / best - 1:+.1%}), "
                f"planned in {made.seconds:.1f} s"
                for made, timing in zip(plans, timings, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--plans", default="quick,normal,max")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    for name in options.networks:
        for batch in map(int, options.batch.split(",")):
            compare(name, batch, options)


if __name__ == "__main__":
    main()
