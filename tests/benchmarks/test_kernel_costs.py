"""The cost model of the fused kernels: reading machine code, how often it runs, occupancy, and the generated tables."""

import json
import shutil
from collections import Counter
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import counting, machine_code, paths
from benchmarks.counting import device_code, estimates, executed_sass, sass, waiting
from benchmarks.counting.devices import DEVICES, occupancy
from benchmarks.reports import gpu_numbers, kernel_costs
from benchmarks.reports.report import RESULTS, page_text

pytestmark = pytest.mark.platforms("cpu")

# A loop over tiles around a loop with a product, in which lanes diverge. ptxas has unrolled the inner loop once, has
# moved the address of the store before the outer loop, and calls a subroutine there.
CODE = """
.text.kernel:
\t//## File ".nv_debug_ptx_txt", line 10
        /*0000*/                   LDC R1, c[0x0][0x28] ;
\t//## File ".nv_debug_ptx_txt", line 90
        /*0010*/                   IMAD.WIDE R2, R3, 0x4, R8 ;
        /*0020*/                   CALL.REL.NOINC `($divide) ;
.L_x_0:
\t//## File ".nv_debug_ptx_txt", line 20
        /*0030*/                   BSSY B0, `(.L_x_2) ;
.L_x_1:
\t//## File ".nv_debug_ptx_txt", line 30
        /*0040*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
        /*0050*/                   FADD R5, R5, R6 ;
\t//## File ".nv_debug_ptx_txt", line 40
        /*0060*/              @!P2 BRA `(.L_x_3) ;
\t//## File ".nv_debug_ptx_txt", line 50
        /*0070*/                   LDG.E R7, desc[UR4][R2.64] ;
        /*0080*/                   IADD3 R7, R7, 0x1, RZ ;
.L_x_3:
\t//## File ".nv_debug_ptx_txt", line 30
        /*0090*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
\t//## File ".nv_debug_ptx_txt", line 60
        /*00a0*/                   BRA P0, `(.L_x_1) ;
.L_x_2:
        /*00b0*/                   BSYNC B0 ;
\t//## File ".nv_debug_ptx_txt", line 90
        /*00c0*/                   STG.E desc[UR4][R2.64], R7 ;
\t//## File ".nv_debug_ptx_txt", line 95
        /*00d0*/               @P1 BRA `(.L_x_0) ;
        /*00e0*/                   EXIT ;
$divide:
        /*00f0*/                   MUFU.RCP R0, R7 ;
        /*0100*/                   RET.REL.NODEC R20 `(kernel) ;
.L_x_9:
"""
# Line: opcode and executions, by 2 warps with 5 tiles each, 8 products per tile, and a load after every fourth.
PTX = {
    10: ("ld.param.u64", 2),
    20: ("mov.u32", 10),
    30: ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 80),
    40: ("setp.ne.s32", 40),
    50: ("ld.global.nc.u32", 20),
    60: ("bra", 40),
    90: ("st.global.u32", 10),
    95: ("bra", 10),
}


@pytest.fixture
def blocks():
    return sass.functions(CODE)["kernel"]


def test_blocks_and_their_edges(blocks):
    assert [block.successors for block in blocks] == [(1,), (2,), (4, 3), (4,), (2, 5), (1, 6), (), ()]
    assert [block.callee for block in blocks] == [7] + 7 * [None]
    assert blocks[3].instructions[0] == sass.Instruction("LDG.E", "R7, desc[UR4][R2.64]", False, 50)
    assert blocks[2].instructions[-1].is_predicated


def test_loops_from_the_outermost_to_the_innermost(blocks):
    assert list(sass.loops(blocks, {2, 4})) == [{1, 2, 3, 4, 5}, {2, 3, 4}]
    assert list(sass.loops(blocks, {0})) == []


def test_code_for_warps_that_have_not_converged():
    code = """
.text.kernel:
        /*0000*/                   BRA.DIV UR5, `(.L_x_1) ;
        /*0010*/                   MATCH.ANY R2, R3 ;
.L_x_0:
        /*0020*/                   EXIT ;
.L_x_1:
        /*0030*/                   WARPSYNC.COLLECTIVE R4, `(.L_x_2) ;
        /*0040*/                   MATCH.ANY R2, R3 ;
        /*0050*/                   ENDCOLLECTIVE ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_0) ;
"""
    blocks = sass.functions(code)["kernel"]
    assert [block.successors for block in blocks] == [(1,), (2,), (), (5,), (5,), (2,)]
    assert executed_sass.block_executions(blocks, {}, 4) == [4, 4, 4, 0, 0, 0]


def test_loops_that_are_left_by_a_call():
    """ptxas for sm_80 does that. The call of $sync is for warps that have not converged, and never runs."""
    code = """
.text.kernel:
.L_x_3:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
        /*0020*/                   BRA.CONV ~URZ, `(.L_x_2) ;
        /*0030*/                   CALL.REL.NOINC `($sync) ;
.L_x_2:
        /*0040*/               @P0 CALL.REL.NOINC `(.L_x_1) ;
        /*0050*/                   BRA `(.L_x_0) ;
.L_x_1:
        /*0060*/               @P1 BRA `(.L_x_3) ;
        /*0070*/                   EXIT ;
$sync:
        /*0080*/                   RET.REL.NODEC R24 `(kernel) ;
"""
    blocks = sass.functions(code)["kernel"]
    assert [block.successors for block in blocks] == [(1,), (3,), (3,), (5, 4), (1,), (0, 6), (), ()]
    assert [block.callee for block in blocks] == [None, None, 7, *5 * [None]]
    assert list(sass.loops(blocks, {1})) == [{0, 1, 3, 4, 5}, {1, 3, 4}]


def test_executions_of_blocks(blocks):
    """An unrolled product runs half as often in each copy; a moved instruction and a subroutine run as their block."""
    found = executed_sass.block_executions(blocks, PTX, warps=2)
    assert found == pytest.approx([2, 10, 40, 20, 40, 10, 2, 2])


def instruction(opcode, **control):
    return sass.Instruction(opcode, "", False, None, **control)


def test_waits_that_machine_code_encodes():
    """A load for sm_90 has 2 clocks until the next instruction, scoreboards 5 and 1, and a wait for scoreboard 0."""
    control = 2 | 5 << 5 | 1 << 8 | 1 << 11
    code = f"""
.text.kernel:
        /*0000*/    LDG.E R7, desc[UR4][R2.64] ;    /* 0x0000000402077981 */
                                                    /* 0x{control << 41:016x} */
        /*0010*/    EXIT ;                          /* 0x000000000000794d */
                                                    /* 0x000fea0003800000 */
"""
    load, _ = sass.functions(code)["kernel"][0].instructions
    assert (load.stall, load.result_scoreboard, load.operands_scoreboard, load.awaited) == (2, 5, 1, (0,))


def test_a_warp_alone_waits_for_its_loads():
    """A load in the loop is awaited by the next iteration, which hides what it issues in between."""
    load, add = instruction("LDG.E", result_scoreboard=2), instruction("FADD", awaited=(2,))
    others = [instruction("FMUL")] * 100
    loop = sass.Block((add, load, *others), (0,), None)
    assert waiting.alone([loop], [1.0], 0) == 263 + 1
    assert waiting.alone([sass.Block((load, add, *others), (0,), None)], [1.0], 0) == 263 + 1 + 100


def test_a_warp_alone_waits_for_its_products():
    loop = sass.Block(8 * (instruction("HMMA.16816.F32.BF16"),), (0,), None)
    assert waiting.alone([loop], [3.0], 6) == 3 * 8 * 6


def test_warps_hide_each_others_waiting():
    """One warp needs the sum, few warps share it, and many are bound by the service."""
    assert waiting.together(100, 300, 1) == 400
    assert waiting.together(172, 330, 2) == pytest.approx(280.5, abs=0.1)
    assert waiting.together(100, 300, 64) == pytest.approx(100, rel=1e-6)


def test_instructions_of_ptx():
    text = """
.visible .entry _Zkernel(
\t.param .u64 a
)
{
\t.reg .pred \t%p<2>;
\tld.param.u64 \t%rd1, [a];
$L__BB0_1:
\t.loc\t1 23 5
\t@%p1 bra \t$L__BB0_1;
\t// begin inline asm
\t{
  .reg .pred valid;
  @valid ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
}
\t// end inline asm
\tret;
}
.entry other()
{
\tret;
}
"""
    assert device_code.ptx_instructions(text) == {
        "_Zkernel": [(7, "ld.param.u64"), (10, "bra"), (14, "ld.global.nc.v4.u32"), (17, "ret")],
        "other": [(21, "ret")],
    }


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "threads", "expected"),
    [
        # The forward with 128 features of commit 75c2dcc, of which an SM of an A100 had room for one block of 4 warps.
        ("sm_80", 226, 87040, 128, (1, 4, "shared memory")),
        ("sm_90", 232, 87040, 128, (2, 8, "registers")),
        ("sm_120", 232, 87040, 128, (1, 4, "shared memory")),
        ("sm_90", 32, 0, 256, (8, 64, "registers")),
        ("sm_90", 33, 0, 256, (6, 48, "registers")),  # 40 registers each, because warps get units of 256
        ("sm_89", 16, 0, 256, (6, 48, "warps")),
        ("sm_86", 16, 0, 32, (16, 16, "blocks")),
    ],
)
def test_occupancy(architecture, registers, shared, threads, expected):
    assert occupancy(DEVICES[architecture], registers, shared, threads) == expected


def newest_results():
    return json.loads(estimates.newest(RESULTS).read_text())


def test_the_page_of_paths_is_what_is_chosen():
    """After a change to the estimate or the counted costs, `python -m benchmarks.paths` must run again."""
    newest = max(RESULTS.glob("*-paths.md"))
    sections = paths.sections(date.fromisoformat(newest.name[:10]))
    assert page_text(paths.TITLE, sections) == newest.read_text()


def test_pages_have_the_tables_of_the_results(tmp_path):
    path = Path(shutil.copy(estimates.newest(RESULTS), tmp_path))
    performance = tmp_path / "performance.md"
    performance.write_text(machine_code.PERFORMANCE.read_text())
    module = Path(shutil.copy(gpu_numbers.MODULE, tmp_path))
    machine_code.main(["--render"], tmp_path, performance, module)
    assert module.read_text() == gpu_numbers.MODULE.read_text()
    assert performance.read_text() == machine_code.PERFORMANCE.read_text()
    assert path.with_suffix(".md").read_text() == estimates.newest(RESULTS).with_suffix(".md").read_text()


@pytest.fixture
def built_module(monkeypatch, tmp_path):
    """As if CUDA kernels had been built and their launches counted."""
    path = tmp_path / "_cuda.so"
    path.write_bytes(bytes(1_230_000))
    module = SimpleNamespace(__file__=str(path), compiler="CUDA 13.0.88, 90-real 80-virtual")
    opcodes = Counter({"LDG.E.128": 2, "STG.E": 1, "HMMA.16816.F32": 64})
    kernel = counting.machine_code.Kernel("a.cu", "Kernel<half>", 128, 0, 0, 1024, opcodes)
    launches = newest_results()["launches"]
    monkeypatch.setitem(machine_code.extension.modules, "cuda", module)
    monkeypatch.setattr(counting.machine_code, "missing", lambda: None)
    monkeypatch.setattr(counting.machine_code, "kernels", lambda architecture: [kernel])
    monkeypatch.setattr(machine_code.kernel_costs, "missing", lambda: None)
    monkeypatch.setattr(machine_code.kernel_costs, "measure", lambda shapes=(): iter(() if shapes else launches))
    monkeypatch.setattr(machine_code.kernel_costs, "measure_im2col", lambda: iter(newest_results()["im2col launches"]))


ROW = "| a.cu | `Kernel<half>` | 128 | 16 of 64 | 0, 0 | 1024 | 2 of 16 | 1 of 4 | none | 64 HMMA.16816.F32 |"


def test_the_command_writes_results_and_pages(built_module, tmp_path, capsys):
    performance = tmp_path / "performance.md"
    performance.write_text(machine_code.PERFORMANCE.read_text())
    machine_code.main(["--registers"], tmp_path, performance)
    assert capsys.readouterr().out.splitlines()[-1] == ROW
    assert estimates.newest(tmp_path) is None
    machine_code.main([], tmp_path, performance, Path(shutil.copy(gpu_numbers.MODULE, tmp_path)))
    report = json.loads(estimates.newest(tmp_path).read_text())
    assert list(report) == list(newest_results())
    assert list(report["machine code"]) == ["sm_90"]
    lines = estimates.newest(tmp_path).with_suffix(".md").read_text().splitlines()
    assert "The module with the code for all of these architectures takes 1.23 MB." in lines
    assert lines[-1] == ROW
    assert performance.read_text() == machine_code.PERFORMANCE.read_text()


def test_tables_need_their_markers():
    tables = kernel_costs.tables(newest_results()["launches"])
    with pytest.raises(ValueError, match="no markers of 'wavefronts by instruction'"):
        kernel_costs.replace_tables("", tables)
