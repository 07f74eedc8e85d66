"""What editors and type checkers read of the package."""

import ast
import inspect
import pathlib

import minka
import pytest
from minka import _extension

PACKAGE = pathlib.Path(minka.__file__).parent


def test_the_extension_s_stub_has_all_that_it_has():
    stub = ast.parse((PACKAGE / "_extension.pyi").read_text())
    classes = {node.name: {item.name if isinstance(item, ast.FunctionDef) else item.target.id for item in node.body
                           if isinstance(item, (ast.FunctionDef, ast.AnnAssign))}
               for node in stub.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert functions | set(classes) == {name for name in vars(_extension) if not name.startswith("_")}
    for name, members in classes.items():
        assert members - {"__init__"} == {member for member in vars(getattr(_extension, name)) if not member.startswith("_")}, name
    assert (PACKAGE / "py.typed").exists()


def public_functions():
    for name in minka.__all__:
        thing = getattr(minka, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing) and not issubclass(thing, Exception):
            for member, function in vars(thing).items():
                if inspect.isfunction(function) and not member.startswith("_"):
                    yield f"{name}.{member}", function


@pytest.mark.parametrize("name, function", list(public_functions()), ids=lambda value: value if isinstance(value, str) else "")
def test_public_functions_are_typed_and_described(name, function):
    signature = inspect.signature(function)
    untyped = [parameter.name for parameter in signature.parameters.values()
               if parameter.annotation is parameter.empty and parameter.name not in ("self", "args", "kwargs", "options")]
    assert not untyped and signature.return_annotation is not signature.empty, (name, untyped)
    assert function.__doc__ or name.endswith(".request"), name
