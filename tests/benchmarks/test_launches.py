"""What is read from the text of a program for a GPU, on one that is written by hand."""

import pytest

from benchmarks.lowering.launches import Launch, launches

pytestmark = pytest.mark.platforms("cpu")
PROGRAM = """HloModule jit_step, is_scheduled=true

FileNames
1 "/checkouts/jax_dcn/examples/library/training.py"
2 "/usr/lib/python3.12/site-packages/optax/transforms/_clipping.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=101 end_line=101 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=105 end_line=105 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%fused_reduce (param_0: f32[8,4]) -> f32[4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %sum = f32[4]{0} reduce(%param_0, %zero), dimensions={0}, to_apply=%add
}

%fused_add (p: f32[4], p.1: f32[8,4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %p.1 = f32[8,4]{1,0} parameter(1)
  %same = bf16[8,4]{1,0} convert(%p.1)
  %row = bf16[1,4]{1,0} slice(%same), slice={[0:1], [0:4]}
  %flat = f32[4]{0} bitcast(%row)
  ROOT %twice = f32[4]{0} add(%p, %flat), metadata={op_name="jit(step)/transpose(jvp(f))/add"}
}

%body (carry: (s32[], f32[4])) -> (s32[], f32[4]) {
  %carry = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%carry), index=1
  %next = f32[4]{0} add(%x, %x)
  ROOT %both = (s32[], f32[4]{0}) tuple(%x, %next)
}

%branch (y: f32[4]) -> f32[4] {
  %y = f32[4]{0} parameter(0)
  ROOT %copied = f32[4]{0} copy(%y)
}

ENTRY %main (x: f32[8,4]) -> f32[4] {
  %x = f32[8,4]{1,0} parameter(0)
  %input_reduce_fusion = f32[4]{0} fusion(%x), kind=kInput, calls=%fused_reduce, metadata={stack_frame_id=2}
  %loop_add_fusion = f32[4]{0} fusion(%input_reduce_fusion, %x), kind=kLoop, calls=%fused_add
  %rows = f32[2,4]{1,0} gather(%x, %loop_add_fusion), slice_sizes={1,4}
  %turned = f32[4,8]{1,0} transpose(%x), dimensions={1,0}, metadata={stack_frame_id=1}
  %product = (bf16[4,4]{1,0}, s8[32]{0}) custom-call(%turned), custom_call_target="__cublas$lt$matmul"
  %loop = (s32[], f32[4]{0}) while(%x), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %chosen = f32[4]{0} conditional(%x, %x, %x), branch_computations={%branch, %branch}
  ROOT %result = f32[4]{0} custom-call(%input_reduce_fusion), custom_call_target="dcn_aggregate"
}
"""


def test_launches():
    training, clipping = "examples/library/training.py:101", "optax/transforms/_clipping.py:105"
    assert launches(PROGRAM) == [
        Launch("input_reduce_fusion", "reduction", 4 * (8 * 4 + 4), clipping, training, 1),
        Launch("loop_add_fusion", "element-wise", 3 * 4 * 4, "-", "-", 1),
        Launch("rows", "element-wise", 2 * 2 * 4 * 4 + 4 * 4, "-", "-", 1),
        Launch("turned", "copy", 2 * 4 * 8 * 4, training, training, 1),
        Launch("product", "product", 4 * 8 * 4 + 2 * 4 * 4, "-", "-", 1),
        Launch("next", "element-wise", 3 * 4 * 4, "-", "-", 3),
        *2 * [Launch("copied", "copy", 2 * 4 * 4, "-", "-", 1)],
        Launch("result", "jax_dcn", 2 * 4 * 4, "-", "-", 1),
    ]
