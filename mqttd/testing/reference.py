"""Writes ``docs/reference/testing.md`` from `mqttd.testing`: what plugins are tested with.

Every name that it exports, with the methods of its class and of the classes of `mqttd.testing`
below it; of a conformance class also what it tests. Called by ``scripts/generate-docs``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from mqttd import testing
from mqttd.plugins.reference import doc_text

__all__ = ["testing_page"]

Node: TypeAlias = ast.ClassDef | ast.FunctionDef

_HEAD: Final = """\
# Testing

<!-- Written by `scripts/generate-docs` from mqttd/testing/; change that, not this page. -->

`mqttd.testing` is what a plugin is tested with: the real broker in memory, on a clock that only the
test turns. How it is used, with examples that run: [Test a plugin](../howto/test-a-plugin.md). The
packets that `MemoryClient.send` takes and `received` holds are those of `mqttd.codec.packets`
(`Publish(topic, payload, qos, retain, packet_id=1)`, `Puback`, ...).
"""


def testing_page() -> str:
    """The page."""
    parts = [_HEAD]
    nodes = _nodes()
    for name in sorted(testing.__all__, key=_order):
        node = nodes[name]
        doc = doc_text(ast.get_docstring(node) or "")
        if isinstance(node, ast.ClassDef):
            parts.append(f"\n## {name}\n\n{doc}{_of_class(node, nodes)}")
        else:
            parts.append(f"\n## {name}\n\n`{_signature(node)}`\n\n{doc}")
    return "".join(parts)


#: What a test begins with.
_FIRST: Final = ("MemoryBroker", "MemoryClient", "LoadedPlugin", "HookRecorder", "FaultInjector")


#: What pytest calls.
_PYTEST: Final = ("setup_method", "teardown_method")


def _order(name: str) -> tuple[int, bool, str]:
    place = _FIRST.index(name) if name in _FIRST else len(_FIRST)
    return place, not name.endswith("Conformance"), name


def _nodes() -> dict[str, Node]:
    """Classes and functions of the modules that `mqttd.testing` is made of, by name."""
    found: dict[str, Node] = {}
    for path in sorted(Path(str(testing.__file__)).parent.glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.setdefault(node.name, node)
    return found


def _of_class(node: ast.ClassDef, nodes: dict[str, Node]) -> str:
    """Its methods and attributes, then what it tests."""
    made, tests = [], []
    for member in _members(node, nodes):
        text = doc_text(ast.get_docstring(member) or "")
        if member.name.startswith("test_"):
            tests.append(f"- `{member.name}`")
        elif member.name == "__init__":
            made.append(f"\n`{node.name}{_signature(member, own=True)}`\n")
        elif not member.name.startswith("_") and member.name not in _PYTEST:
            is_value = any(ast.unparse(mark) == "property" for mark in member.decorator_list)
            shown = f": {ast.unparse(member.returns)}" if is_value and member.returns else ""
            call = f"`{member.name}{shown if is_value else _signature(member, own=True)}`"
            made.append(f"\n### {node.name}.{member.name}\n\n{call}\n\n{text}")
    asked = "\nIt asks for:\n\n" + "\n".join(tests) + "\n" if tests else ""
    return "".join(made) + asked


def _members(node: ast.ClassDef, nodes: dict[str, Node]) -> Iterator[ast.FunctionDef]:
    """The methods of a class and of those below it, each once."""
    seen: set[str] = set()
    classes = [node]
    for each in classes:
        for item in each.body:
            if isinstance(item, ast.FunctionDef) and item.name not in seen:
                seen.add(item.name)
                yield item
        for base in each.bases:
            below = nodes.get(ast.unparse(base))
            if isinstance(below, ast.ClassDef):
                classes.append(below)


def _signature(node: ast.FunctionDef, own: bool = False) -> str:
    """Arguments and result as they are written; of a method (`own`) without ``self``."""
    arguments = ast.unparse(node.args)
    if own:
        arguments = arguments.partition(", ")[2] if ", " in arguments else ""
    result = ast.unparse(node.returns) if node.returns else "None"
    name = "" if own else node.name
    return f"{name}({arguments})" + ("" if result == "None" else f" -> {result}")
