#!/bin/bash
# Runs from the repository root of the clone, with PYTHONPATH set. For each grouped layer of ResNeXt-50,
# RegNetX-800MF and DPN-48b at batch 1 and 64: the error and the us of the first four variants of
# grouped_mma in float16, of the first in TF32, of the best of six plans of cuDNN, and the floor.
PY=${PYTHON:-python3.12}; command -v $PY >/dev/null || PY=python3
cat > /tmp/grouped_times.py <<'EOP'
import os, sys, time
sys.path.insert(0, os.getcwd())
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import numpy as np
from gossamer.device.registry import find
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.grouped.grouped_mma import GroupedMma
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.weights import Weights
from gossamer.tensor import pack, unpack

LIMIT = float(os.environ.get("K75_SECONDS", "112"))
RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
SILU = Epilogue(Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("sigmoid", (2,)),
                               ExpressionStep("mul", (2, 3)))), ("channel",))
# channels, groups, input size, stride, epilogue
LAYERS = [("resnext50", 128, 32, 56, 1, RELU), ("resnext50", 256, 32, 56, 2, RELU),
          ("resnext50", 256, 32, 28, 1, RELU), ("resnext50", 512, 32, 28, 2, RELU),
          ("resnext50", 512, 32, 14, 1, RELU), ("resnext50", 1024, 32, 14, 2, RELU),
          ("resnext50", 1024, 32, 7, 1, RELU),
          ("regnetx800", 64, 4, 112, 2, RELU), ("regnetx800", 128, 8, 56, 2, RELU),
          ("regnetx800", 128, 8, 28, 1, RELU), ("regnetx800", 288, 18, 28, 2, RELU),
          ("regnetx800", 288, 18, 14, 1, RELU), ("regnetx800", 672, 42, 14, 2, RELU),
          ("regnetx800", 672, 42, 7, 1, RELU),
          ("dpn48b", 128, 32, 56, 1, SILU), ("dpn48b", 256, 32, 56, 2, SILU),
          ("dpn48b", 512, 32, 28, 2, SILU), ("dpn48b", 1024, 32, 14, 2, SILU)]
device = find("cuda:0")
print(device.description, device.driver, flush=True)
start = time.time()


def floor_us(problem, itemsize, rate):
    numbers = (problem.inputs[0].size + problem.outputs[0].size
               + problem.out_channels * problem.group_channels * problem.taps)
    return max(numbers * itemsize / 3.9e6, problem.outputs[0].size * 2 * problem.depth / rate)


def prepared(algorithm, problem, variants, weights):
    def one(variant):
        try:
            return algorithm.prepare(weights, problem, variant, device)
        except Exception as error:
            return error
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, variants))


def run(algorithm, problem, variant, state, x, expected):
    """Return (error, us alone, us as a step of a plan)."""
    source = device.upload(pack(x, variant.inputs[0]), "input")
    spec = variant.outputs[0]
    target = device.empty(spec.nbytes, "output")
    workspace = device.empty(max(variant.workspace, 16), "workspace")

    def work(stream):
        algorithm.launch(state, [source], [target], workspace, stream)
    work(None)
    device.synchronize()
    stored = np.empty(spec.nbytes, np.uint8)
    device.read(target, stored)
    images = expected.shape[0]
    found = unpack(stored.view(spec.stored_dtype), spec)[:images].astype(np.float64)
    error = max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, expected))
    times = []
    for as_in_plan in (False, True):
        execute = device.timed_graph(work, 20, as_in_plan=as_in_plan)
        execute()
        times.append(sorted(execute() / 20 for _ in range(5))[2])
    return error, *times


wrong = []
for batch in (64, 1):
    for network, channels, groups, size, stride, epilogue in LAYERS:
        if time.time() - start > LIMIT:
            print("no time left for", network, channels, groups, size, stride, "batch", batch)
            continue
        problem = Conv2dProblem(batch, channels, size, size, channels, (3, 3), (stride, stride),
                                (1, 1, 1, 1), groups=groups, epilogue=epilogue)
        rng = np.random.default_rng(0)
        x = rng.standard_normal(problem.inputs[0].shape, np.float32).astype(np.float16)
        arrays = {name: rng.standard_normal(shape, np.float32) / 8
                  for name, shape in problem.weight_shapes.items()}
        few = problem.first_images(2)
        (expected,) = reference(few, [x[:2]], arrays)
        weights = Weights(arrays, device, "the timing")
        floor = floor_us(problem, 2, 660e6)
        goal = 1.6 * floor + 3
        print(f"== {network} {problem.describe()} batch {batch}: floor {floor:.1f} goal {goal:.1f}",
              flush=True)
        ours = GroupedMma()
        variants = list(ours.variants_in(problem, device, ("fp16",)))[:4]
        if batch == 1:
            variants += list(ours.variants_in(problem, device, ("tf32",)))[:1]
        best = float("inf")
        for variant, state in zip(variants, prepared(ours, problem, variants, weights)):
            config = " ".join(f"{key}={value}" for key, value in variant.config)
            if isinstance(state, Exception):
                print("   ", config, "FAILED", state)
                wrong.append((network, problem.describe(), config))
                continue
            given = x if variant.precision == "fp16" else x.astype(np.float32)
            error, alone, step = run(ours, problem, variant, state, given, expected)
            if not error < 2e-3:
                wrong.append((network, problem.describe(), config))
            if variant.precision == "fp16":
                best = min(best, alone)
            model = ours.expected_us(problem, variant, device)
            print(f"    {variant.precision} {config}: {alone:.1f} us, in a plan {step:.1f}, expected "
                  f"{model:.1f}, error {error:.1e}", flush=True)
        cudnn = Cudnn()
        reason = cudnn.supports(problem, device)
        if reason is None:
            plans = [v for v in cudnn.variants_in(problem, device, ("fp16",))
                     if v.inputs[0].layout == "NHWC"][:6]
            times = []
            for plan, state in zip(plans, prepared(cudnn, problem, plans, weights)):
                if not isinstance(state, Exception):
                    try:
                        times.append(run(cudnn, problem, plan, state, x, expected)[1])
                    except Exception as error:
                        print("    cudnn:", error)
            reason = f"{min(times):.1f} us (best of {len(times)})" if times else "no plan ran"
        print(f"    cudnn: {reason}; ours {best:.1f}, {'meets' if best <= goal else 'MISSES'} the goal, "
              f"{best / floor:.2f} of the floor", flush=True)
print("wrong:", wrong or "nothing", f"{time.time() - start:.0f} s")
EOP
timeout 170 $PY /tmp/grouped_times.py
