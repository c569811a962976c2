"""`make gpu-check`, or `python -m benchmarks.gpu_check`: what can be learnt about the package on a GPU in 9 minutes."""
