"""Sphinx configuration of the site that `make docs` builds.

The source directory is the whole repository, so that links from pages to the results work as in the repository itself.
"""

import re
import types

import jax.typing
from sphinx.util import inspect

# The site shows these names instead of the unions that they stand for.
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
smartquotes_action = "D"  # only dashes: quotes and dots may be Python code
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_default_options = {"special-members": "__call__"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

# The build uses no network, so it cannot link to names of other packages.
nitpick_ignore_regex = [("py:.*", r"(?!jax_dcn\b).*"), ("py:class", r".*\.(\w*Options|Tree)")]
# Programs write the results. Pages that quote them link to them, so the table of contents does not list them.
suppress_warnings = ["toc.not_included", "myst.header"]


def setup(app):
    app.connect("autodoc-process-signature", _readable)


def _readable(app, what, name, obj, options, signature, returns):
    """Show the arguments of a class: NNX hides them, Linen adds `parent`, and some defaults are not valid Python."""
    if what == "class":
        arguments = inspect.signature(obj.__init__, bound_method=True)
        signature = inspect.stringify_signature(arguments, show_return_annotation=False, unqualified_typehints=True)
        signature = re.sub(r", parent: .*(?=\))", "", signature)
        signature = re.sub(r"<class '([^']*)'>", r"\1", signature)
        signature = re.sub(r"<function (?:[^<>]|<locals>)*>", "...", signature)
    return signature, returns
