"""How programs are lowered: their HLO, and the CUDA kernels in place of those of the CPU, executed as PTX."""
