"""How Sphinx builds the site: `make docs`.

Its source is the whole repository, so that pages link to the results as they do in the repository itself.
"""

import re
import types

import jax.typing
from sphinx.util import inspect

# Shown by these names, not as the unions that they stand for.
jax.typing.ArrayLike = types.new_class("ArrayLike")
jax.typing.DTypeLike = types.new_class("DTypeLike")

project = "jax_dcn"
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/results/*.md"]
exclude_patterns = [".*", "build", "out"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_title = "jax_dcn"
html_copy_source = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

myst_heading_anchors = 3
default_role = "literal"
smartquotes_action = "D"  # dashes alone: quotes and dots are those of Python
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_default_options = {"special-members": "__call__"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

# Without a network, what is not this package's cannot be linked to.
nitpick_ignore_regex = [("py:.*", r"(?!jax_dcn\b).*"), ("py:class", r".*\.(Options|Tree)")]
# Results are written by programs; they are reached from the pages that quote them, not from the contents.
suppress_warnings = ["toc.not_included", "myst.header"]


def setup(app):
    app.connect("autodoc-process-signature", _readable)


def _readable(app, what, name, obj, options, signature, returns):
    """A class's arguments, which NNX hides, without what Linen adds, and with dots for defaults that are no Python."""
    if what == "class":
        arguments = inspect.signature(obj.__init__, bound_method=True)
        signature = inspect.stringify_signature(arguments, show_return_annotation=False, unqualified_typehints=True)
        signature = re.sub(r", parent: .*(?=\))", "", signature)
        signature = re.sub(r"<class '([^']*)'>", r"\1", signature)
        signature = re.sub(r"<function (?:[^<>]|<locals>)*>", "...", signature)
    return signature, returns
