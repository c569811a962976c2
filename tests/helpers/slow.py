"""Cases that run in continuous integration, and not in `make test`."""

import pytest


def slow_unless(is_quick, *values, **options):
    """A `pytest.param` that is marked as slow unless it is one of the quick cases."""
    return pytest.param(*values, marks=() if is_quick else pytest.mark.slow, **options)
