"""Markup that is escaped by construction: text becomes Markup in `text`, attributes in `tag`, and nowhere else."""

from __future__ import annotations

import html
from typing import NewType

Markup = NewType("Markup", str)

_VOID = frozenset({"br", "hr", "meta"})
NOTHING = Markup("")


def text(plain: object) -> Markup:
    """`plain` as text."""
    return Markup(html.escape(str(plain), quote=True))


def join(*parts: Markup) -> Markup:
    """Parts one after the other."""
    return Markup("".join(parts))


def tag(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """One element. Attributes: a trailing underscore is dropped (`class_`), other underscores become hyphens; None is
    left out; numbers are written with at most two decimals."""
    written = "".join(
        f' {_attribute(key)}="{html.escape(_number(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{''.join(children)}</{name}>")


def _attribute(key: str) -> str:
    return "viewBox" if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
