collect_ignore = ["make_golden.py"]  # needs packages that the tests do not
