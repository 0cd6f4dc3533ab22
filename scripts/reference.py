"""The reference of all public names: signatures, first paragraphs and fields, taken from the code.

MkDocs calls it as a hook at each build, so the page cannot fall behind the code.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from itertools import pairwise

# All public modules, in the order of the page. The names are those of __all__, or else those that a
# module defines itself.
MODULES = (
    "outrider",
    "outrider.brokers",
    *(f"outrider.brokers.{name}" for name in ("rabbitmq", "kafka", "nats", "redis")),
    "outrider.stream",
    "outrider.admin",
    "outrider.dashboard",
    "outrider.observability",
    *(f"outrider.observability.{name}" for name in ("logging", "prometheus", "opentelemetry")),
    *(f"outrider.integrations.{name}" for name in ("fastapi", "starlette", "dishka", "alembic")),
    *(f"outrider.integrations.{name}" for name in ("pydantic", "faststream")),
    *(f"outrider.testing.{name}" for name in ("spy", "memory_broker", "memory_store")),
    *(f"outrider.testing.{name}" for name in ("faulty_proxy", "conformance", "store_suite")),
    "outrider.testing.services",
)


def public_names(module):
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    )


def documentation(module, name):
    """The docstring, or for an alias the text below it."""
    value = getattr(module, name)
    if inspect.isclass(value):
        own = value.__dict__.get("__doc__") or ""
        return None if own.startswith(f"{name}(") else own  # what a dataclass makes up
    if inspect.isroutine(value) or inspect.ismodule(value):
        return value.__doc__
    homes = [made for key, made in sys.modules.items() if key.split(".")[0] == "outrider"]
    texts = (_texts_of(ast.parse(inspect.getsource(home)).body) for home in homes)
    return next((found[name] for found in texts if name in found), None)


def _texts_of(body):
    """What stands as a text below each assignment."""
    found = {}
    for first, second in pairwise(body):
        target = getattr(first, "target", None) or (getattr(first, "targets", None) or [None])[0]
        text = isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant)
        if text and isinstance(target, ast.Name) and isinstance(second.value.value, str):
            found[target.id] = inspect.cleandoc(second.value.value)
    return found


def first_paragraph(text):
    return " ".join((text or "").partition("\n\n")[0].split())


def written(module_name):
    module = importlib.import_module(module_name)
    yield f"\n## `{module_name}`\n"
    if module_name != "outrider":
        yield first_paragraph(module.__doc__) + "\n"
    for name in public_names(module):
        yield from _entry(module, name)


def _entry(module, name):
    value = getattr(module, name)
    yield f"\n### {name}\n"
    if inspect.isclass(value) or inspect.isroutine(value):
        yield f"`{name}{_signature(value)}`\n"
    yield first_paragraph(documentation(module, name)) + "\n"
    if inspect.isclass(value):
        yield from _members(value)


def _members(kind):
    fields = _fields(kind)
    if fields:
        yield "\n| field | says |\n|---|---|"
        yield from (f"| `{name}` | {first_paragraph(text)} |" for name, text in fields.items())
        yield ""
    methods = [
        f"- `{name}{_signature(member, own=True)}` {first_paragraph(member.__doc__)}".rstrip()
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith(("_", "test_"))
    ]
    if methods:
        yield "\n" + "\n".join(methods) + "\n"


def _fields(kind):
    if not hasattr(kind, "__dataclass_fields__"):
        return {}
    found = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("outrider"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
            found |= _texts_of(tree.body)
    return found


def _signature(value, own=False):
    """As it is called; empty for what nobody calls, such as protocols and errors."""
    if inspect.isclass(value):
        made = value.__init__
        if getattr(value, "_is_protocol", False) or not inspect.isfunction(made):
            return ""
        signature = inspect.signature(made).replace(return_annotation=inspect.Signature.empty)
        own = True
    else:
        signature = inspect.signature(value)
    parameters = [
        p.replace(default=p.empty if p.default is p.empty else _Default(p.default))
        for p in list(signature.parameters.values())[1 if own else 0 :]
    ]
    text = str(signature.replace(parameters=parameters)).replace("'", "").replace('"', "")
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


class _Default:
    """A default as people read it; objects without a plain form are only said to be there."""

    def __init__(self, value):
        plain = isinstance(value, bool | int | float | str | tuple | None)
        self._text = repr(value) if plain else "…"

    def __repr__(self):
        return self._text


def all_names():
    lines = [line for name in MODULES for line in written(name)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def on_page_markdown(markdown, page, **_):
    return f"{markdown}\n{all_names()}" if page.file.src_uri == "reference.md" else markdown
