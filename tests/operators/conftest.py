from tests.deform_conv.conftest import fused_wherever_possible, im2col_on_cpu  # noqa: F401, which are fixtures of this folder too
