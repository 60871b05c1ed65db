"""Translates the CUDA branch of a kernel to C++ for g++."""

from __future__ import annotations

import re

from gossamer.device.source import DIALECT, KernelSource, files_of
from gossamer.errors import CompileError

_PTX = {
    "bar.sync %0, %1;": "emulation::wait_for_part(%0, %1, __FILE__, __LINE__)",
    "bar.sync %0, 128;": "emulation::wait_for_part(%0, 128, __FILE__, __LINE__)",
    "mbarrier.init.shared::cta.b64 [%0], %1;": "emulation::mbarrier_init(%0, %1)",
    "mbarrier.arrive.shared::cta.b64 _, [%0];": "emulation::mbarrier_arrive(%0, 0)",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;": "emulation::mbarrier_arrive(%0, %1)",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];":
        "emulation::cp_async_mbarrier_arrive(%0)",
    r"{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
    r"@!done bra again;\n}": "emulation::mbarrier_wait_parity(%0, %1, __FILE__, __LINE__)",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];":
        "emulation::cp_async_bulk(%0, %1, %2, %3)",
    "{ .reg .b32 there, expecting; mapa.shared::cluster.u32 there, %0, %6; "
    "mapa.shared::cluster.u32 expecting, %1, %6; "
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%2, %3, %4, %5}, "
    "[expecting]; }": "emulation::st_async_cluster(%0, %1, %2, %3, %4, %5, %6)",
    "fence.mbarrier_init.release.cluster;": "(void)0",
    "fence.proxy.async.shared::cta;": "(void)0",
    "setmaxnreg.dec.sync.aligned.u32 %0;": "(void)0",
    "setmaxnreg.inc.sync.aligned.u32 %0;": "(void)0",
    "wgmma.fence.sync.aligned;": "(void)0",
    "wgmma.commit_group.sync.aligned;": "emulation::commit_products()",
    "wgmma.wait_group.sync.aligned %0;": "emulation::wait_for_products(%0)",
    "cp.async.wait_all;": "(emulation::cp_async_commit_group(), emulation::cp_async_wait_group(0))",
    "cvt.f32.f16 %0, %1;": "%0 = half_bits_to_float(%1)",
    "cvt.rn.f16.f32 %0, %1;": "%0 = float_to_half_bits(%1)",
    "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;":
        "emulation::wait_for_cluster(__FILE__, __LINE__)",
    "barrier.cluster.arrive.release.aligned;": "(void)0",
    "barrier.cluster.arrive.relaxed.aligned;": "(void)0",
    "barrier.cluster.wait.acquire.aligned;": "emulation::wait_for_cluster(__FILE__, __LINE__)",
    "barrier.cluster.wait.aligned;": "emulation::meet_cluster(__FILE__, __LINE__)",
    "mapa.u64 %0, %1, %2;": "%0 = (decltype(%0))emulation::map_cluster(%1, %2)",
    "griddepcontrol.launch_dependents;": "(void)0",
    "griddepcontrol.wait;": "(void)0",
    "prefetch.global.L2 [%0];": "(void)*(const volatile char *)%0",
    "ex2.approx.ftz.f32 %0, %1;": "%0 = exp2f(%1)",
    "rcp.approx.ftz.f32 %0, %1;": "%0 = 1.0f / (%1)",
    "sqrt.approx.ftz.f32 %0, %1;": "%0 = sqrtf(%1)",
    "div.approx.ftz.f32 %0, %1, %2;": "%0 = (%1) / (%2)",
    **{f"mma.sync.aligned.{shape} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
       "{%0, %1, %2, %3};":
       f"emulation::multiply({halves}, %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, __FILE__, __LINE__)"
       for shape, halves in (("m16n8k16.row.col.f32.f16.f16.f32", "true"),
                             ("m16n8k8.row.col.f32.tf32.tf32.f32", "false"))},
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
    "{%0, %1, %2, %3};":
        "emulation::multiply(true, %0, %1, %2, %3, %4, %5, 0, 0, %6, 0, __FILE__, __LINE__)",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
    "{%8, %9}, {%10, %11, %12, %13};":
        "(%0 = %10, %1 = %11, %2 = %12, %3 = %13, emulation::multiply("
        "true, %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, __FILE__, __LINE__))",
    "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, "
    "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};":
        "emulation::multiply_bits(%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, __FILE__, __LINE__)",
    **{f"ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{%0, %1, %2, %3}}, [%4];":
       f"emulation::ldmatrix_x4({transposed}, %0, %1, %2, %3, %4, __FILE__, __LINE__)"
       for form, transposed in (("", "false"), (".trans", "true"))},
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];":
        "emulation::ldmatrix_x2(%0, %1, %2, __FILE__, __LINE__)",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};":
        "emulation::stmatrix_x4_trans(%0, %1, %2, %3, %4, __FILE__, __LINE__)",
    "cvt.rn.f16x2.f32 %0, %1, %2;":
        "%0 = (unsigned)float_to_half_bits(%1) << 16 | float_to_half_bits(%2)",
    "cvt.rn.relu.f16x2.f32 %0, %1, %2;":
        "%0 = (unsigned)float_to_half_bits(emulation::extreme(true, %1, 0.0f)) << 16"
        " | float_to_half_bits(emulation::extreme(true, %2, 0.0f))",
    **{f"{name}.NaN.f32 %0, %1, %2;": f"%0 = emulation::extreme({larger}, %1, %2)"
       for name, larger in (("max", "true"), ("min", "false"))},
    **{f"{name}.NaN.f16x2 %0, %1, %2;": f"%0 = emulation::extreme_halves({larger}, %1, %2)"
       for name, larger in (("max", "true"), ("min", "false"))},
    **{f"cp.async.{cache}.shared.global [%0], [%1], {width}, %2;":
       f"emulation::cp_async<{width}>(%0, %1, %2)"
       for cache, width in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16))},
    "cp.async.commit_group;": "emulation::cp_async_commit_group()",
    "cp.async.wait_group %0;": "emulation::cp_async_wait_group(%0)",
}
"""The C++ code of each PTX instruction in kernels. Approximate instructions compute exact
values."""

_WGMMA = re.compile(r"asm volatile\(WGMMA_TEXT\(WGMMA_([A-Z]+), (\w+)\)[\s\\]*"
                    r":\s*WGMMA_SUMS\(\w+\)[\s\\]*:([^;]*)\);")
_PRODUCTS = {
    "SS": "emulation::multiply_later<{width}>(true, sums, {inputs});",
    "RS": "emulation::multiply_rows_of_group<{width}>(HALVES, sums, {inputs}, __FILE__, __LINE__);",
    "SPARSE": "emulation::multiply_sparse_later<{width}>(sums, {inputs});",
    "BITS": "emulation::multiply_bits_of_group(sums, {inputs}, __FILE__, __LINE__);",
}
"""The C++ code of the forms of wgmma, which mma/warpgroup_operands.h defines."""
_ASM = re.compile(r'\basm\b(?:\s+volatile)?\s*\(\s*((?:"[^"]*"\s*)+)'
                  r'((?:[^()";]|"[^"]*"|\((?:[^()]|\([^()]*\))*\))*)\)')
_LITERAL = re.compile(r'"([^"]*)"')
_OPERAND = re.compile(r'"[^"]*"\s*\(((?:[^()]|\([^()]*\))*)\)')
_DYNAMIC = re.compile(r"\bextern\s+__shared__\s+(\w+)\s+(\w+)\[\];")


def translated(source: KernelSource) -> str:
    """Return the translation unit, which begins with tensor_cores.h.

    Raises CompileError that names an instruction without a translation.
    """
    text = source.text()
    if DIALECT not in files_of(source.path):
        raise CompileError(f"{source.path.name} does not include dialect/common.h")
    text = _WGMMA.sub(_product, text)
    text = _ASM.sub(_instruction, text)
    text = _DYNAMIC.sub(r"\1 *const \2 = (\1 *)emulation::dynamic_shared();", text)
    if left := re.search(r"\basm\b.*", text.split("#ifdef __CUDACC__", 1)[1]):
        raise CompileError(f"{source.path.name} has an instruction that is not understood: "
                           f"{left[0]}")
    return (f'#include "tensor_cores.h"\n{text}\n'
            f'void run_kernel() {{ emulation::call({source.function}); }}\n'
            f'int kernel_parameters() {{ return emulation::parameters({source.function}); }}\n')


def _product(match: re.Match[str]) -> str:
    form, width, inputs = match.groups()
    return _PRODUCTS[form].format(width=width, inputs=", ".join(_OPERAND.findall(inputs)))


def _instruction(match: re.Match[str]) -> str:
    ptx, operands = "".join(_LITERAL.findall(match[1])), _OPERAND.findall(match[2])
    if not ptx:
        return "(void)0"  # an empty statement that hides a value from the compiler
    if ptx not in _PTX:
        raise CompileError(f"tests/emulation/translation.py does not know the instruction {ptx!r}")
    statement = _PTX[ptx]
    return f"({re.sub(r'%([0-9]+)', lambda number: operands[int(number[1])], statement)})"
