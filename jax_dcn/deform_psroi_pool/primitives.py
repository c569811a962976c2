"""The primitives: forward, tangent and cotangent, from the reference and the kernels."""

from jax_dcn import _compat
from jax_dcn._primitive import register_family
from jax_dcn.deform_psroi_pool import kernels
from jax_dcn.deform_psroi_pool.arguments import OPERANDS, check_operands
from jax_dcn.deform_psroi_pool.reference import reference


def result(x, rois, offset, *, spec):
    """The type of the result; raises ValueError where the operands do not fit."""
    check_operands(x, rois, offset, spec=spec)
    features = x.shape[-1] // (spec.group_size[0] * spec.group_size[1])
    return _compat.result_aval(x, (*rois.shape[:-1], *spec.output_size, features), x.dtype, leading=x.ndim - 4)


deform_psroi_pool = register_family(
    "deform_psroi_pool",
    result=result,
    reference=reference,
    forward=kernels.forward,
    cotangent=kernels.cotangent,
    operands=len(OPERANDS),
    shared=(),
    linear=(OPERANDS.index("x"),),
)
