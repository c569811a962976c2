"""The primitives: forward, tangent and cotangent, from the reference and the kernels."""

from jax_dcn import _compat
from jax_dcn._primitive import register_family
from jax_dcn.deform_conv import kernels
from jax_dcn.deform_conv.arguments import OPERANDS, check_operands
from jax_dcn.deform_conv.reference import reference


def result(x, offset, weight, bias, mask, *, spec):
    """The type of the result; raises ValueError where the operands do not fit."""
    check_operands(x, offset, weight, bias, mask, spec=spec)
    return _compat.result_aval(x, (*offset.shape[:-1], weight.shape[-1]), spec.dtype, leading=x.ndim - 3)


deform_conv = register_family(
    "deform_conv",
    result=result,
    reference=reference,
    forward=kernels.forward,
    cotangent=kernels.cotangent,
    operands=len(OPERANDS),
    shared=(OPERANDS.index("weight"), OPERANDS.index("bias")),
    linear=(OPERANDS.index("x"), OPERANDS.index("weight"), OPERANDS.index("mask")),
)
