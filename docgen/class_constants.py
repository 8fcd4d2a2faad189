"""The constants of a class with the docstrings under them, read from the source."""

import ast
import inspect
from itertools import zip_longest
from textwrap import dedent


def documented_constants(cls: type) -> dict[str, tuple[object, str]]:
    """Return the value and the docstring of every constant that the class body assigns, in the order of the source."""
    (tree,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - for the type checker
    constants = {}
    for statement, following in zip_longest(tree.body, tree.body[1:]):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                constants[name] = (getattr(cls, name), _docstring(following))
    return constants


def _docstring(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""
