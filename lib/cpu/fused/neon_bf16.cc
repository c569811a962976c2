#define DCN_INSTRUCTION_SET neon_bf16
#include "instruction_sets.h"

#if DCN_HAS_NEON_KERNELS
#include "fused/pair_product.h"
#endif
