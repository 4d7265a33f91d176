"""A file has one reason to be opened, a function does one thing: past these sizes the build fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import ROOT, product_files

FILE_LINES = 400
FUNCTION_LINES = 50
POSITIONAL_PARAMETERS = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def name_of(path: Path, function: Function) -> str:
    return f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"


def test_no_file_reaches_the_limit() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in product_files()}
    too_long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in sizes.items() if lines >= FILE_LINES]
    assert not too_long, f"split these by the reason to open them (limit {FILE_LINES}): {too_long}"


def test_no_function_reaches_the_limit() -> None:
    too_long = [
        f"{name_of(path, function)}: {length} lines"
        for path in product_files()
        for function in functions(path)
        if (length := (function.end_lineno or function.lineno) - function.lineno + 1) > FUNCTION_LINES
    ]
    assert not too_long, f"a function does one thing at one level (limit {FUNCTION_LINES}): {too_long}"


def test_at_most_five_parameters_are_positional() -> None:
    too_many = [
        name_of(path, function)
        for path in product_files()
        for function in functions(path)
        if len([one for one in (*function.args.posonlyargs, *function.args.args) if one.arg not in ("self", "cls")])
        > POSITIONAL_PARAMETERS
    ]
    assert not too_many, f"make the rest keyword-only: {too_many}"
