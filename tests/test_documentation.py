"""The examples of the documentation run, and say what happens."""

import doctest
import pathlib
import re

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/deform_psroi_pool.md", "docs/export.md", "docs/scaling.md"])
def test_pages(page):
    if page == "docs/scaling.md" and jax.device_count() < 8:
        pytest.skip("that page wants eight devices")
    test = doctest.DocTestParser().get_doctest("\n".join(examples(page)), {}, page, None, None)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0


def test_readme():
    names = {}
    for example in examples("README.md"):
        exec(example, names)
    assert names["y"].shape == (2, 32, 32, 8)
    assert names["restored"].platforms == ("cpu", "cuda", "tpu")
