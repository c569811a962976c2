"""Composes the docstrings of layers."""

import inspect
import re
from dataclasses import InitVar
from typing import TypeVar

T = TypeVar("T")

_SECTIONS = ("Args", "Raises", "References", "Example")


def documented(layer: type[T]) -> type[T]:
    """Adds the docstrings of a layer's base classes in this package to its own.

    The summary and the example are the layer's. Paragraphs of the bases, without their summaries, precede the further
    paragraphs of the layer. The arguments stand in the order of the signature; the most derived class documents each.
    """
    for name, annotation in layer.__init__.__annotations__.items():
        if isinstance(annotation, InitVar):  # help() and the site show the type
            layer.__init__.__annotations__[name] = annotation.type
    bases = [base for base in layer.__mro__ if base.__module__.startswith("jax_dcn.") and base.__doc__]
    docs = [
        re.split(rf"^({'|'.join(_SECTIONS)}):\n", inspect.cleandoc(base.__doc__ or ""), flags=re.M) for base in bases
    ]
    paragraphs = [doc[0].strip().split("\n\n") for doc in docs]
    own, shared = paragraphs[0], [text for of_base in paragraphs[1:] for text in of_base[1:]]
    sections = {name: "" for name in _SECTIONS}
    for doc in docs:
        for name, text in zip(doc[1::2], doc[2::2], strict=True):
            sections[name] += text.rstrip() + "\n"
    entries: dict[str, str] = {}
    for text in re.split(r"\n(?=  \w)", sections["Args"].rstrip()):
        entries.setdefault(text.split(":")[0].strip(), text)
    order = inspect.signature(layer.__init__).parameters
    sections["Args"] = "\n".join(entries[name] for name in order if name in entries)
    texts = [own[0], *shared, *own[1:]]
    texts += [f"{name}:\n{text.rstrip()}" for name, text in sections.items() if text]
    layer.__doc__ = "\n\n".join(texts) + "\n"
    return layer
