#!/bin/bash
# Runs from the repository root with PYTHONPATH set: times of the phases of a step of `batched` on cuda:0,
# and variants of its barriers, in copies of the package with patched kernels.
PY=${PYTHON:-python3.12}; command -v $PY >/dev/null || PY=python3
W=$(mktemp -d); export W
cat > $W/patch.py <<'EOP'
import re, shutil, sys, os
root, variant = sys.argv[1:3]
marks = variant.endswith("+marks"); variant = variant.removesuffix("+marks")
shutil.copytree("gossamer", root + "/gossamer")
base = root + "/gossamer/"
def edit(path, *pairs):
    text = open(base + path).read()
    for a, b in pairs:
        assert a in text, (path, a)
        text = text.replace(a, b)
    open(base + path, "w").write(text)
C, H = "ops/backprop/batched.cl", "ops/backprop/batched_changes.h"
edit("ops/backprop/batched.py", ("workspace_buffer, problem.samples), 4 * layout.floats)", "workspace_buffer, problem.samples), 4 * layout.floats + 512)"),
     ("if 4 * layout.floats <=", "if 4 * layout.floats + 512 <="))
B = "device/include/ptx/cluster.h"
def sub(path, *pairs):
    text = open(base + path).read()
    for a, b in pairs:
        text, n = re.subn(a, lambda m: b, text)
        assert n, (path, a)
    open(base + path, "w").write(text)
if variant == "allrelease":
    edit(B, ("    if (LOCAL_ID(0) / 32 == THREADS / 32 - 1)", "    if (true)"))
if variant in ("relaxed", "local"):
    edit(B, ("    if (LOCAL_ID(0) / 32 == THREADS / 32 - 1)", "    if (false)"))
if variant == "nocluster":
    sub(B, (r'#define CLUSTER_SEND\(\)  [\s\S]*?#define CLUSTER_RECEIVE.*\n', "#define CLUSTER_SEND() BARRIER()\n#define CLUSTER_RECEIVE()\n"))
if variant == "norotation":
    edit(C, ("(uint)(first_part + part) % CLUSTER", "(uint)part % CLUSTER"), ("(n / of_owner + rank) % owners", "n / of_owner"))
if variant in ("local",):
    edit(C, ("map_cluster(pool, other) + (at)", "pool + (at) + 0 * (other)"), ("map_cluster(pool, b / MINE) + O_AT", "pool + O_AT"))
if marks:
    edit(C,
     ('#include "ptx/cp_async.h"\n', """#include "ptx/cp_async.h"
#define MARK(k) if (item == 0 && GROUP_ID(0) == 0) { unsigned now_; asm volatile("mov.u32 %0, %%clock;" : "=r"(now_) :: "memory"); atomicAdd((unsigned *)(pool + FLOATS) + (k), now_); }
"""),
     ("    GLOBAL_BARRIER();\n    ALL(LOAD)", "    if (item < 128) pool[FLOATS + item % 128] = 0.0f;\n    GLOBAL_BARRIER();\n    ALL(LOAD)"),
     ("        COPIED();\n        BARRIER();\n#if MOMENTS == 2", "        MARK(0)\n        COPIED();\n        BARRIER();\n        MARK(1)\n#if MOMENTS == 2"),
     ("        FORWARD_FIRST\n", "        MARK(2)\n        FORWARD_FIRST\n"),
     ("        BARRIER();\n#endif\n        ROLLED for (int n = item; n < MINE * 4", "        MARK(30)\n        BARRIER();\n#endif\n        MARK(31)\n        ROLLED for (int n = item; n < MINE * 4"),
     ("#if BY_SAMPLES\n        CLUSTER_SEND();\n        CLUSTER_RECEIVE();\n", "        MARK(32)\n#if BY_SAMPLES\n        CLUSTER_SEND();\n        CLUSTER_RECEIVE();\n        MARK(33)\n"),
     ("        BARRIER();\n\n#if MOMENTS == 2\n        step_rate", "        BARRIER();\n        MARK(34)\n\n#if MOMENTS == 2\n        step_rate"),
     ("    ALL(STORE)\n", "    ALL(STORE)\n    if (GROUP_ID(0) == 0 && item < 96) ((GLOBAL unsigned *)losses)[item] = ((unsigned *)(pool + FLOATS))[item];\n"))
    sub(C,
     (r"    GROUP_SEND\(l\) *\\\n    GROUP_RECEIVE\(l\) *\\\n    TAKE_SUMS_##l", "    MARK(4 + 6 * l) GROUP_SEND(l) MARK(8 + 6 * l) GROUP_RECEIVE(l) MARK(5 + 6 * l)  \\\n    TAKE_SUMS_##l MARK(6 + 6 * l)"),
     (r"    GROUP_SEND\(0\) *\\\n    FETCH_NEXT\(step\) *\\\n    GROUP_RECEIVE\(0\) *\\\n    TAKE_SUMS_0", "    MARK(4) GROUP_SEND(0) MARK(8) FETCH_NEXT(step) MARK(9) GROUP_RECEIVE(0) MARK(5)  \\\n    TAKE_SUMS_0 MARK(6)"),
     (r"            add_parts\(pool \+ S_AT", "            MARK(7 + 6 * l) add_parts(pool + S_AT"),
     (r"    GROUP_SEND\(l\) *\\\n    CHANGE_WEIGHTS\(l,", "    MARK(47 + 8 * l) GROUP_SEND(l) MARK(40 + 8 * l) \\\n    CHANGE_WEIGHTS(l,"),
     (r"        GROUP_RECEIVE\(l\) *\\\n        GATHER\(before, l\)", "        GROUP_RECEIVE(l) MARK(44 + 8 * l) \\\n        GATHER(before, l) MARK(45 + 8 * l)"),
     (r"\n#if CHUNKS > 1\n        for \(int chunk = 0; chunk < CHUNKS; chunk\+\+\) \{\n            COPIED", "\n        MARK(35)\n#if CHUNKS > 1\n        for (int chunk = 0; chunk < CHUNKS; chunk++) {\n            COPIED"))
    sub(H,
     (r"            BARRIER\(\); *\\\n            if \(part < tile\[2\]\)", "            MARK(46 + 8 * l) BARRIER(); MARK(41 + 8 * l) \\\n            if (part < tile[2])"),
     (r"            BARRIER\(\); *\\\n            AFTER_PRODUCT", "            BARRIER(); MARK(42 + 8 * l) \\\n            AFTER_PRODUCT"),
     (r"            AFTER_PRODUCT *\\\n        \} *\\\n    \}\n", "            AFTER_PRODUCT  \\\n        } \\\n        MARK(43 + 8 * l) \\\n    }\n"))
EOP
cat > $W/time.py <<'EOP'
import sys, os, fcntl
root, variant, setting = sys.argv[1:4]
sys.path.insert(0, root)
import numpy as np
from dataclasses import replace
import gossamer; assert gossamer.__file__.startswith(root)
from gossamer.device.registry import find
from gossamer.ops.backprop.batched import Batched
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.weights import Weights
P = {"default": (BackpropProblem((784, 100, 10), 20000, 12000, "relu", "cross_entropy", 200, adam=True), 512),
     "deep": (BackpropProblem((784, 256, 128, 10), 20000, 12800, "relu", "cross_entropy", 64, adam=True), 384),
     "online": (BackpropProblem((784, 32, 10), 20000, 6000, "relu", "cross_entropy", 1, adam=True), 256)}
problem, threads = P[setting]
device = find("cuda:0"); A = Batched()
inputs = problem.example_inputs(np.random.default_rng(1))
v = next(v for v in A.variants(problem, device) if v["groups"] == 16 and v["threads"] == threads)
state = A.prepare(Weights({}, device, "t"), problem, v, device)
with open(os.environ["W"] + "/lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    src = [device.upload(a, "i") for a in inputs]
    outs = [device.empty(s.nbytes, "o") for s in v.outputs]
    ws = device.empty(max(v.workspace, 16), "w")
    work = lambda stream: A.launch(state, src, outs, ws, stream)
    work(None); device.synchronize()
    ex = device.timed_graph(work, 1); ex(); ex()
    us = sorted(ex() for _ in range(5))[2]
    steps = problem.samples // problem.batch
    losses = np.empty(v.outputs[1].shape, np.float32); device.read(outs[1], losses)
text = f"{setting:8} {variant:14} {us / steps:8.3f} us/step"
if "marks" in variant:
    t = losses.ravel()[:96].view(np.uint32).astype(np.int64)
    L = len(problem.sizes) - 1
    order = [(0, ""), (1, "copied+barrier"), (2, "factors")]
    for l in range(L):
        order += [(7 + 6*l, f"F{l} product parts+barrier"), (4 + 6*l, f"F{l} product/add"), (8 + 6*l, f"F{l} send"), *([(9, "fetch")] if l == 0 else []), (5 + 6*l, f"F{l} receive"), (6 + 6*l, f"F{l} take sums")]
    order += [(30, "statistic"), (31, "its barrier"), (32, "errors"), (33, "cluster barrier"), (34, "gather outputs' errors+barrier")]
    for l in range(L - 1, -1, -1):
        order += [(47 + 8*l, f"B{l} backward product"), (40 + 8*l, f"B{l} send")] if l else [(35, "losses")]
        order += [(46 + 8*l, f"G{l} gradient product"), (41 + 8*l, f"G{l} barrier"), (42 + 8*l, f"G{l} store+barrier"), (43 + 8*l, f"G{l} change"), (44 + 8*l, f"B{l} receive"), (45 + 8*l, f"B{l} gather")]
    used = [(k, n) for k, n in order if t[k]]
    parts = []
    for (a, _), (b, n) in zip(used, used[1:]):
        parts.append(f"{n} {((t[b] - t[a]) % 2**32) / steps:.0f}")
    text += "\n    " + "; ".join(parts) + f"; all {((t[used[-1][0]] - t[0]) % 2**32) / steps:.0f} cycles"
print(text, flush=True)
EOP
for v in base base+marks allrelease relaxed norotation local local+marks nocluster; do
  mkdir $W/$v; $PY $W/patch.py $W/$v $v || continue
  for s in default deep online; do
    (timeout 55 $PY $W/time.py $W/$v $v $s > $W/$v.$s.out 2>&1 || echo "$v $s FAILED $(tail -3 $W/$v.$s.out)" > $W/$v.$s.out) &
  done
done
wait
for s in default deep online; do cat $W/*.$s.out; done
rm -rf $W
