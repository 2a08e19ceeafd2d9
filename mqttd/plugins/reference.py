"""Writes ``docs/reference/interfaces.md`` from `mqttd.interfaces`: every method and attribute.

The interfaces are the contract and their docstrings its text; this turns them into one page, so
that neither can say what the other does not. Called by ``scripts/generate-docs``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from zope.interface import Interface
from zope.interface.interface import InterfaceClass, Method

from mqttd import interfaces, types
from mqttd.codec import packets
from mqttd.interfaces import access, handle, hooks, plugin, stores
from mqttd.session.ground import message

__all__ = ["doc_text", "interfaces_page", "types_page"]

_HEAD: Final = """\
# Interfaces

<!-- Written by `scripts/generate-docs` from mqttd/interfaces/; change that, not this page. -->

This is `mqttd.interfaces`, version {version}: what a plugin may provide (`IPlugin` above all),
and what it is given (`IPluginHandle`). How a plugin is packaged, found and loaded:
[Plugins](plugins.md).

{rules}
"""

_TYPES_HEAD: Final = """\
# Types

<!-- Written by `scripts/generate-docs` from mqttd/types.py; change that, not this page. -->

The values that go into a plugin's callbacks and modules, and come out of them: `mqttd.types`, and
`Subscription` and `Message` of the hook points. Times are seconds since 1970 unless a field says
otherwise. How they are used: [an authenticator](../howto/write-an-authenticator.md),
[access control](../howto/write-access-control.md), [hooks](hooks.md).
"""
#: Of `mqttd.session.ground.message`.
_MESSAGE: Final = ("Message",)

_MEMBER: Final = re.compile(r":(?:param )?(?P<name>[\w. ]+):\s+(?P<text>.*)", re.DOTALL)


def interfaces_page() -> str:
    """The page."""
    intro = inspect.getdoc(interfaces) or ""
    parts = [_HEAD.format(version=interfaces.API_VERSION, rules=_rules(intro))]
    texts = _signatures()
    for found in _interfaces():
        bases = [base.__name__ for base in found.__bases__ if base is not Interface]
        parts.append(f"\n## {found.__name__}\n\n")
        if bases:
            links = ", ".join(f"[{base}](#{base.lower()})" for base in bases)
            parts.append(f"Extends {links}.\n\n")
        parts.append(doc_text(found.__doc__ or ""))
        for name in texts[found.__name__]:
            member: Any = found[name]
            signature = texts[found.__name__][name]
            kind = f"{name}{signature}" if isinstance(member, Method) else name
            parts.append(f"\n### {found.__name__}.{name}\n\n")
            if isinstance(member, Method):
                parts.append(f"`{kind}`\n\n")
            parts.append(doc_text(member.getDoc()))
    return "".join(parts)


def types_page() -> str:
    """The page of the values that go in and out."""
    parts = [_TYPES_HEAD]
    for module, names in (
        (types, types.__all__),
        (packets, ("Subscription",)),
        (message, _MESSAGE),
    ):
        for node in ast.parse(_source(module)).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                parts.append(f"\n## {node.name}\n\n{doc_text(ast.get_docstring(node) or '')}")
                fields = list(_fields(node))
                if fields:
                    parts.append("\n| Field | Type | Default |\n|---|---|---|\n")
                    parts += [
                        f"| `{name}` | `{kind}` | {default} |\n" for name, kind, default in fields
                    ]
    return "".join(parts)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """The fields of a class: those it declares, else those that its ``__init__`` takes."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if not item.target.id.startswith("_"):
                default = f"`{ast.unparse(item.value)}`" if item.value is not None else "needed"
                yield item.target.id, _cell(item.annotation), default.replace("|", "\\|")
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            if item.targets[0].id.isupper():
                yield item.targets[0].id, "value", f"`{ast.unparse(item.value)}`"
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            taken = item.args.args[1:]
            given = [None] * (len(taken) - len(item.args.defaults)) + list(item.args.defaults)
            for argument, value in zip(taken, given, strict=True):
                default = "needed" if value is None else f"`{ast.unparse(value)}`"
                kind = _cell(argument.annotation) if argument.annotation else ""
                yield argument.arg, kind, default


def _cell(annotation: ast.expr) -> str:
    return ast.unparse(annotation).replace("|", "\\|")


def _interfaces() -> list[InterfaceClass]:
    """Each interface once, plugins first, in the order of the module."""
    found = [
        value
        for name, value in vars(interfaces).items()
        if isinstance(value, InterfaceClass) and name == value.__name__ and value is not Interface
    ]
    first = ("IMqttdPlugin", "IPlugin", "IPluginHandle", "IHooks")
    return sorted(
        found, key=lambda each: first.index(each.__name__) if each.__name__ in first else len(first)
    )


def _signatures() -> dict[str, dict[str, str]]:
    """Interface -> member -> its arguments and result as they are written, in that order."""
    found: dict[str, dict[str, str]] = {}
    modules = (access, handle, hooks, plugin, stores)
    for node in chain.from_iterable(ast.parse(_source(each)).body for each in modules):
        if not isinstance(node, ast.ClassDef):
            continue
        members = found.setdefault(node.name, {})
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                result = f" -> {ast.unparse(item.returns)}" if item.returns else ""
                members[item.name] = f"({ast.unparse(item.args)}){result}"
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                members[item.targets[0].id] = ""
    return found


def _source(module: ModuleType) -> str:
    """The text of a module, also of one that is compiled: it stands beside its sources."""
    spec = module.__spec__
    assert spec is not None and spec.origin is not None
    folder, _, name = spec.origin.rpartition("/")
    return Path(folder, f"{name.partition('.')[0]}.py").read_text(encoding="utf-8")


def _rules(text: str) -> str:
    """The module's docstring: its definition list as a list."""
    lines = []
    for block in text.split("\n\n"):
        for name, body in re.findall(r"^(\w+)\n((?:    .*\n?)+)", block, re.MULTILINE):
            lines.append(f"- **{name}**: {' '.join(body.split())}")
    return _inline("\n".join(lines))


def doc_text(doc: str) -> str:
    """A docstring as Markdown: fields become a list, a literal block a fenced one."""
    out: list[str] = []
    for block in _blocks(inspect.cleandoc(doc)):
        if block.startswith("    "):
            out.append(f"```text\n{inspect.cleandoc(block)}\n```")
        elif block == "::":
            continue
        elif block.startswith(":"):
            fields = re.split(r"\n(?=:)", block)
            out.append("\n".join(_field(field) for field in fields))
        else:
            out.append(_inline(block))
    return "\n\n".join(out) + "\n"


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs; the lines of an indented block stay together."""
    kept = ""
    for block in text.split("\n\n"):
        if block.startswith("    "):
            kept = f"{kept}\n\n{block}" if kept else block
            continue
        if kept:
            yield kept
            kept = ""
        yield block.strip("\n")
    if kept:
        yield kept


def _field(field: str) -> str:
    found = _MEMBER.match(field)
    assert found is not None, field
    text = _inline(" ".join(found["text"].split()))
    name = found["name"]
    if name == "return":
        return f"- returns {text}"
    if name.startswith("raises "):
        return f"- raises `{name.removeprefix('raises ')}`: {text}"
    return f"- `{name}`: {text}"


def _inline(text: str) -> str:
    """reStructuredText's literals as Markdown's."""
    return re.sub(r"``(.+?)``", r"`\1`", text)
