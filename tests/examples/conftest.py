collect_ignore = ["make_golden.py"]  # it needs more packages than the tests
