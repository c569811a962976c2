"""The examples of the documentation run, and say what happens."""

import doctest
import pathlib
import re
import runpy

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]


def examples(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/deform_psroi_pool.md", "docs/export.md", "docs/pictures.md", "docs/scaling.md"])
def test_pages(page):
    if page == "docs/pictures.md":
        pytest.importorskip("matplotlib")
    if page == "docs/scaling.md" and jax.device_count() < 8:
        pytest.skip("that page wants eight devices")
    test = doctest.DocTestParser().get_doctest("\n".join(examples(page)), {}, page, None, None)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.platforms("cpu")
def test_the_pictures_are_made(tmp_path):
    """Those that the page shows, but for one of a detector that trains for minutes."""
    pytest.importorskip("matplotlib")
    main = runpy.run_path(str(ROOT / "docs/images/make.py"))["main"]
    main(["--steps", "0", "--out", str(tmp_path)])
    shown = re.findall(r"\(images/(.*?)\)", (ROOT / "docs/pictures.md").read_text())
    assert {path.name for path in tmp_path.iterdir()} == set(shown) - {"bins.png"}
    assert all((ROOT / "docs/images" / name).exists() for name in shown)


def test_readme():
    names = {}
    for example in examples("README.md"):
        exec(example, names)
    assert names["y"].shape == (2, 32, 32, 8)
    assert names["restored"].platforms == ("cpu", "cuda", "tpu")
