"""Cases that run in continuous integration, and not in `make test`."""

import pytest


def slow(*values, **options):
    """A `pytest.param` that is marked as slow."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def slow_unless(is_quick, *values, **options):
    """The same unless it is one of the quick cases."""
    return pytest.param(*values, **options) if is_quick else slow(*values, **options)
