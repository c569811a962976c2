#define DCN_INSTRUCTION_SET avx512_bf16
#include "instruction_sets.h"

#if DCN_HAS_X86_KERNELS
#include "deform_conv/fused_cpu/pair_product.h"
#endif
