#define DCN_INSTRUCTION_SET avx512_bf16
#include "instruction_sets.h"

#if DCN_HAS_X86_KERNELS
#include "fused/pair_product.h"
#endif
