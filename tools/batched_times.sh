#!/bin/bash
# Runs from the repository root , with PYTHONPATH set. Prints the correctness of `batched`
# on cuda:0, and us a sample of per_step, persistent and batched (each group size).
PY=${PYTHON:-python3.12}; command -v $PY >/dev/null || PY=python3
cat > /tmp/batched_times.py <<'EOP'
import sys, time
sys.path.insert(0, ".")
import numpy as np
from dataclasses import replace
from gossamer.device.registry import find
from gossamer.ops.backprop.batched import Batched, _fitting
from gossamer.ops.backprop.per_step import PerStep
from gossamer.ops.backprop.persistent import Persistent
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer.ops.weights import Weights

def error(y, r):
    return float(np.linalg.norm(y.astype(np.float64) - r) / max(np.linalg.norm(r), 1e-300))

device = find("cuda:0")
print(device.description, device.driver, "cluster", device.limits.cluster, flush=True)
start = time.time()
CASES = {
    "default 784-100-10 Adam 200": (BackpropProblem((784, 100, 10), 60000, 60000, "relu", "cross_entropy", 200, adam=True), 2000, 12000),
    "deep 784-256-128-10 Adam 64": (BackpropProblem((784, 256, 128, 10), 60000, 60000, "relu", "cross_entropy", 64, adam=True), 640, 12800),
    "online 784-32-10 Adam 1": (BackpropProblem((784, 32, 10), 60000, 60000, "relu", "cross_entropy", 1, adam=True), 300, 6000),
    "sgd 784-100-10 batch 200": (BackpropProblem((784, 100, 10), 60000, 60000, "relu", "cross_entropy", 200), 2000, 12000),
    "published 1024-32-10 sgd 1": (BackpropProblem((1024, 32, 10), 60000, 60000), 300, 6000),
    "132 networks 784-32-10 Adam 32": (BackpropProblem((784, 32, 10), 60000, 60000, "relu", "cross_entropy", 32, adam=True, networks=132), 128, 3200),
}
def run(algorithm, problem, variant, inputs, timed):
    weights = Weights({}, device, "the timing")
    state = algorithm.prepare(weights, problem, variant, device)
    sources = [device.upload(a, "input") for a in inputs]
    outputs = [device.empty(spec.nbytes, "output") for spec in variant.outputs]
    workspace = device.empty(max(variant.workspace, 16), "workspace")
    work = lambda stream: algorithm.launch(state, sources, outputs, workspace, stream)
    work(None); device.synchronize()
    if timed:
        execute = device.timed_graph(work, 1)
        execute(); execute()
        return sorted(execute() for _ in range(5))[2]
    arrays = []
    for out, spec in zip(outputs, variant.outputs):
        a = np.empty(spec.shape, np.float32); device.read(out, a); arrays.append(a)
    return arrays

seen_spills = []
for name, (problem, checked, samples) in CASES.items():
    print("==", name, flush=True)
    rng = np.random.default_rng(0)
    short = replace(problem, rows=2000, samples=checked, networks=min(problem.networks, 2))
    inputs = short.example_inputs(rng)
    expected = reference(short, inputs, {})
    long = replace(problem, samples=samples)
    long_inputs = long.example_inputs(np.random.default_rng(1))
    for algorithm in (Batched(), Persistent(), PerStep()):
        timed = long
        while algorithm.supports(timed, device) is not None and timed.samples > 512:
            timed = timed.of_samples(timed.samples // 2 // problem.batch * problem.batch)
        if (reason := algorithm.supports(timed, device)) is not None:
            print("  ", algorithm.name, "cannot:", reason); continue
        groups = {}
        for variant in algorithm.variants(timed, device):
            key = dict(variant.config).get("groups", dict(variant.config).get("weights"))
            groups.setdefault(key, []).append(variant)
        for key, variants in groups.items():
            for variant in variants[:3 if algorithm.name == "batched" else 1]:
                if time.time() - start > 130 and algorithm.name == "batched" and variant is not variants[0]:
                    continue
                try:
                    these = [a[:, :timed.samples] if i == 2 else a for i, a in enumerate(long_inputs)]
                    these = [np.ascontiguousarray(a) for a in these]
                    us = run(algorithm, timed, variant, these, True)
                    each = us / timed.samples / timed.networks
                    text = f"{each:9.4f} us/sample {us / -(-timed.samples // timed.batch):9.2f} us/step"
                    if algorithm.name == "batched":
                        shorter = next(v for v in algorithm.variants(short, device) if v.config == variant.config)
                        a, b = (run(algorithm, short, shorter, inputs, False) for _ in range(2))
                        same = all(p.tobytes() == q.tobytes() for p, q in zip(a, b))
                        text += " errors " + " ".join(f"{error(y, r):.1e}" for y, r in zip(a, expected)) + f" same bits {same}"
                        layout = _fitting(timed, variant["groups"], variant["threads"], device.limits)
                        text += f" cycles {int(layout.cycles)} {layout._memory} split {layout._split}"
                    print("  ", algorithm.name, variant.config_text, text, flush=True)
                except Exception as e:
                    print("  ", algorithm.name, variant.config_text, "FAILED", type(e).__name__, str(e)[:300], flush=True)
print("seconds", round(time.time() - start), flush=True)
EOP
timeout 150 $PY /tmp/batched_times.py
echo "== tests"
timeout 90 $PY -m pytest -q -x -p no:cacheprovider -k "cuda" tests/ops/backprop/test_backprop_kernels.py 2>&1 | tail -15
