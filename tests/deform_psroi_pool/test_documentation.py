"""The examples of the operator's page say what happens."""

import doctest
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "deform_psroi_pool.md"


def test_examples():
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    test = doctest.DocTestParser().get_doctest(examples, {}, PAGE.name, None, None)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0
