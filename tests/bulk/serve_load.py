"""Loads `gossamer serve` with clients that send one photo after another, and checks every answer.

    python -m tests.bulk.serve_load --clients 64 --seconds 60

It prints the rate, the latencies and the number of wrong answers, and ends with an exit code of 1
where there was an error or a wrong answer.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys

import numpy as np

import gossamer
from gossamer_bench.load_client import Request, run
from tests.bulk.server import served
from tests.tolerances import normalised_error, tolerance

_BODIES = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--latency", default="500ms")
    parser.add_argument("--device", default="host", help="as of gossamer serve, such as cuda:all")
    arguments = parser.parse_args()
    photos = [np.random.default_rng(seed).integers(0, 256, (1, 224, 224, 3), np.uint8)
              for seed in range(_BODIES)]
    plan = gossamer.compile("mobilenet_v2", "host", inputs="photos")
    right = [plan(x) for x in photos]
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [
        {"name": plan.inputs[0].name, "datatype": "UINT8", "shape": [1, 224, 224, 3],
         "parameters": {"binary_data_size": photos[0].nbytes}}]}).encode()
    with served("mobilenet_v2", "--device", arguments.device,
                "--latency", arguments.latency) as server:
        outcome = run(Request(
            "127.0.0.1", server.port, "/v2/models/mobilenet_v2/infer",
            {"Inference-Header-Content-Length": str(len(head))},
            [head + x.tobytes() for x in photos], None, arguments.seconds, arguments.clients,
            check=True))
        errors = server.errors
    wrong = sum(_error(answer, right[int(name)]) > tolerance("network")
                for name, answers in outcome.answers.items() for answer in answers)
    failed = sum(count for status, count in outcome.statuses.items() if status != "200")
    print(f"{arguments.clients} clients, {len(outcome.latencies_s)} answers in "
          f"{outcome.seconds:.1f} s, {outcome.rate:.3g} a second; p50 "
          f"{outcome.percentile_s(50):.2f} s, p99 {outcome.percentile_s(99):.2f} s; {failed} "
          f"failed, {wrong} wrong, stderr {len(errors)} bytes")
    return int(bool(failed or wrong or errors or not outcome.latencies_s))


def _error(answer: str, right: np.ndarray) -> float:
    """Returns the error of the output that an answer holds, as its last bytes."""
    output = np.frombuffer(base64.b64decode(answer)[-right.nbytes:], np.float32)
    return normalised_error(output.reshape(right.shape), right)


if __name__ == "__main__":
    sys.exit(main())
