collect_ignore = ["make_golden.py", "make_golden_rcnn.py"]  # they need more packages than the tests
