"""The documentation's pages and the code blocks in them."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md")))]
ERRORS = "docs/troubleshooting.md"
FENCED = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


class Block(NamedTuple):
    """The text between two fences of a page, and the number of the line before it."""

    line: int
    language: str
    text: str


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, *languages):
    """The blocks of a page in these languages, or in all."""
    text = text_of(page)
    found = [Block(text.count("\n", 0, match.start(2)), *match.groups()) for match in FENCED.finditer(text)]
    return [block for block in found if not languages or block.language in languages]
