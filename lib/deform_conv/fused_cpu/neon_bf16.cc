#define DCN_INSTRUCTION_SET neon_bf16
#include "instruction_sets.h"

#if DCN_HAS_NEON_KERNELS
#include "deform_conv/fused_cpu/pair_product.h"
#endif
