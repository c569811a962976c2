"""Measures the operators and reports the results.

Each folder imports only those before it: support, lowering, counting, baselines, measurements, reports. The modules
beside them are commands, such as `python -m benchmarks.scaling`. `benchmarks.gpu_check` runs several of the others.
"""
