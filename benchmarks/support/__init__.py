"""What this machine has: processor, GPU, memory, CUDA tools and compilers, and the state of the sources."""
