"""What the docstrings under a class's fields say, read from the source, where the reader of the code sees them."""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


@cache
def field_docs(model: type) -> dict[str, str]:
    """The docstring under each field of the class itself, by the field's name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, after in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and (text := _text(after)):
            docs[statement.target.id] = text
    return docs


def field_doc(model: type, name: str) -> str:
    """The docstring of a field, in whichever class of the model's line declares it."""
    declaring = next(each for each in model.__mro__ if name in inspect.get_annotations(each))
    return field_docs(declaring).get(name, "")


def class_doc(model: type) -> str:
    return one_paragraph(model.__doc__ or "")


def one_paragraph(text: str) -> str:
    return " ".join(text.split())


def _text(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return one_paragraph(text)
    return ""
