"""Measures the operators and reports the results.

Each package imports only those before it: readers, contenders, measurements, reports. The modules beside them are
commands: `python -m benchmarks`, and `benchmarks.scaling`, `.machine_code`, `.floors`, `.smoke`, `.kernel_times` and
`.gpu_check`, which runs several of the others.
"""
