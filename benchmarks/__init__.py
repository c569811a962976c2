"""Measures the operators and reports the results.

Each folder imports only those before it: support, lowering, baselines, measurements, reports. The modules
beside them are commands, such as `python -m benchmarks.whole_models`: what is measured, its tables and its page. `make
gpu-check` runs several of them.
"""
