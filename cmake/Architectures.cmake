# The GPU architectures that a build for all GPUs, such as a wheel, has machine code for: one of each generation. The page
# docs/building.md says what each GPU runs, and a test compares it, and all other lists, with this one.
set(JAX_DCN_ARCHITECTURES 80 90 100 120)
