"""Reads the docstrings of the fields of a class from the source code, for the settings files and the API schemas."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


@cache
def field_docs(model: type) -> dict[str, str]:
    """Return the docstrings of the fields that the class itself declares, by field name."""
    definition = _classes(model.__module__).get(model.__qualname__)
    docs = {}
    for statement, following in pairwise(definition.body if definition else ()):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and (text := _docstring(following))
        ):
            docs[statement.target.id] = text
    return docs


def field_doc(model: type, name: str) -> str:
    """Return the docstring of a field that the class or one of its base classes declares."""
    declaring = next(each for each in model.__mro__ if name in inspect.get_annotations(each))
    return field_docs(declaring).get(name, "")


def class_doc(model: type) -> str:
    return single_paragraph(model.__doc__ or "")


def single_paragraph(text: str) -> str:
    return " ".join(text.split())


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by qualified name. The source of a module is parsed only once."""

    return dict(_iter_classes(ast.parse(inspect.getsource(sys.modules[module])), ""))


def _iter_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield prefix + name, child
                yield from _iter_classes(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _iter_classes(child, f"{prefix}{name}.<locals>.")
            case ast.stmt():
                yield from _iter_classes(child, prefix)


def _docstring(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return single_paragraph(text)
    return ""
