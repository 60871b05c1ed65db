"""Plans random networks on simulated devices, and checks all that holds for every plan."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from gossamer.device.base import Device
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.input_format import InputFormat
from gossamer.model.load import load
from gossamer.plan.choose.plan_times import program_key
from gossamer.plan.choose.table import IN_PLACE_SHARE
from gossamer.plan.in_place import is_likely_in_place
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Program
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.executor import execute
from tests.model.onnx_models import runtime
from tests.simulated.algorithms import drawn_times, estimated_times, simulated
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.networks import random_network
from tests.simulated.recognised import OF_TOKENS
from tests.tolerances import WORSE_THAN_OTHERS, normalised_error

LARGEST_ERROR = {"fp32": 1e-4, "tf32": 1e-4, "fp16": 2e-2}
"""Errors of whole networks: steps compute in float64, and values between them are stored in the
formats' dtypes."""
RESTRICTIONS = ({}, {}, {}, {}, {"unfused": True}, {"only": "im2col_gemm"},
                {"only": "depthwise"}, {"sparse_threshold": 0.6}, {"budget_s": 1e-6})


FORMATS = (("float32", "NCHW"), ("uint8", "NHWC", 1 / 64, 2.0, 1.25), ("float16", "NHWC"),
           ("uint8", "NCHW", 1 / 128), ("float32", "NHWC", 1.0, 0.5, 2.0))
"""Dtype, layout, scale, mean and std of the inputs."""


@dataclass(frozen=True)
class Case:
    """A network and how it is planned, all drawn from one seed."""

    seed: int
    hardware: str
    effort: str
    precision: str
    batch: int
    restriction: dict
    estimated: bool
    side_by_side: bool
    given: InputFormat
    output_dtype: str

    @classmethod
    def of(cls, seed: int) -> Case:
        rng = np.random.default_rng([seed, 1])

        def pick(*choices):
            return choices[int(rng.integers(len(choices)))]

        return cls(seed, pick("h200", "h200", "h200", "sm_75", "opencl"),
                   pick("quick", "quick", "quick", "normal", "max"),
                   pick("fp32", "tf32", "fp16", "fp16"), pick(1, 1, 1, 2, 3, 8),
                   pick(*RESTRICTIONS), pick(True, False), pick(True, False, False),
                   InputFormat(*FORMATS[seed % len(FORMATS)]),
                   ("float32", "float32", "float16")[seed % 3])

    @property
    def policy(self) -> Policy:
        return Policy(self.effort, self.precision, **self.restriction)


def token_case(seed: int) -> Case:
    """Return a case in which fusions of attention, norms or moves are often the only choice."""
    rng = np.random.default_rng([seed, 3])
    only = ({}, *({"only": name} for name in OF_TOKENS))[int(rng.integers(1 + len(OF_TOKENS)))]
    case = replace(Case.of(seed), restriction=only)
    return replace(case, hardware="h200", precision="fp16") if (
        only.get("only") in ("attention_mma", "normalised_mma")) else case


def check(case: Case, network: Callable[[int], onnx.ModelProto] = random_network) -> None:
    """Plans the case's network and raises AssertionError, or whatever planning raises, where
    something is wrong. network: makes it of the seed."""
    proto = network(case.seed)
    onnx.checker.check_model(proto)
    times = (estimated_times if case.estimated else drawn_times)(case.seed)
    rng = np.random.default_rng([case.seed, 2])
    shape = case.given.ordered((case.batch, *(
        d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim[1:])))
    x = (rng.integers(0, 256, shape, np.uint8) if case.given.dtype == "uint8"
         else rng.standard_normal(shape, dtype=np.float32).astype(case.given.dtype))
    given = {"x": case.given.as_network_takes(x)}
    expected = runtime(proto, given)
    with tempfile.TemporaryDirectory() as folder, simulated(times):
        path = Path(folder) / "network.onnx"
        path.write_bytes(proto.SerializeToString())
        graph = with_formats(load(str(path)), case.given, case.output_dtype)
        device = SimulatedDevice(HARDWARE[case.hardware], side_by_side=case.side_by_side)
        plan = planned(case, graph, device, Path(folder))
        results = plan(x)
        results = results if isinstance(results, tuple) else (results,)
        for y, right, info in zip(results, expected, proto.graph.output, strict=True):
            assert y.shape == right.shape, f"{info.name}: {y.shape}, expected {right.shape}"
            assert y.dtype == case.output_dtype, f"{info.name}: {y.dtype}"
            with np.errstate(over="ignore"):
                right = right.astype(case.output_dtype)
            # steps compute in float64, where a sum of masks does not overflow
            right = np.where(np.isfinite(y) & ~np.isfinite(right), y, right)
            error, most = normalised_error(y, right), LARGEST_ERROR[case.precision]
            most = max(most, 1e-3) if y.dtype == np.float16 else most
            if error > most and case.precision == "fp16":
                # such as the norm of nearly equal numbers, which magnifies errors of rounding
                half = execute(resolve(load(str(path)), case.batch), given, "float16")[info.name]
                most += WORSE_THAN_OTHERS * normalised_error(half, right)
            assert error <= most, f"{info.name}: error {error:.1e}"
        program = plan.program(case.batch)
        _check_steps(program)
        _check_cost(program, device)
        again = planned(case, graph, device, Path(folder)).program(case.batch)
        assert program_key(again, device) == program_key(program, device), "another plan at once"
        plan.save(Path(folder) / "saved.plan")
        loaded = Plan.load(Path(folder) / "saved.plan", device=device)
        assert program_key(loaded.program(case.batch), device) == program_key(program, device), (
            "another plan once it was saved and loaded")
        str(plan.report(case.batch))


def planned(case: Case, graph: Graph, device: SimulatedDevice, folder: Path) -> Plan:
    """Returns the plan of a case. folder: has the measurements."""
    tuner = Tuner(device, case.effort, precision=case.precision, budget_s=case.policy.budget_s,
                  cache=TuningCache(device, folder / "tuning"),
                  keeps_precisions=case.policy.tolerance is not None)
    return Plan(graph, device, case.policy, tuner=tuner)


def _check_steps(program: Program) -> None:
    """Checks that each step reads and writes values in its variant's formats, that no value is
    converted twice into one memory, and that nothing is computed twice."""
    written: set[str] = set()
    computed: set[str] = set()
    made: list[tuple[str, object]] = []
    for step in program.steps:
        variant = step.placed_variant or step.variant
        for name, spec in zip(step.inputs, variant.inputs, strict=True):
            assert step.in_place or program.specs[name].same_memory(spec), (
                f"{step.layer.name} misreads {name}")
        for name, spec in zip(step.outputs, variant.outputs, strict=True):
            assert step.in_place or program.specs[name].same_memory(spec), (
                f"{step.layer.name} miswrites {name}")
            assert name not in written, f"{name} is written twice"
            written.add(name)
        for name in step.layer.computes:
            assert name not in computed, f"{name} is computed twice"
            computed.add(name)
        if step.layer.inserted:
            assert not any(name == step.inputs[0] and step.variant.outputs[0].same_memory(spec)
                           for name, spec in made), f"{step.inputs[0]} is converted twice"
            made.append((step.inputs[0], step.variant.outputs[0]))


def _check_cost(program: Program, device: Device) -> None:
    """Checks that the cost that the plan assignment states is that of the steps."""
    if program.cost_us is None:
        return
    costs = {step.layer.name: step.candidate_of(step.candidates).cost * (
        IN_PLACE_SHARE if not step.layer.inserted and is_likely_in_place(
            step.problem, step.variant) else 1.0) for step in program.steps}
    assert math.isclose(sum(costs.values()), program.cost_us, rel_tol=1e-9, abs_tol=1e-6), (
        f"{sum(costs.values())} us of steps, stated are {program.cost_us}: {costs}")
