"""The direction of imports: an arrow may only point towards the codec.

    {codec, net, secrets} <- session <- broker <- readmodel
             <- {access, plugins, transports, storage, monitor, pipeline, admin, nats}
             <- mesh <- {workers, cluster} <- service, embed

Parts on one line do not import one another. Everyone may import what crosses the borders:
`mqttd.interfaces`, `mqttd.types`, `mqttd.config.schema`, `mqttd.printable` and `mqttd.checksum`.
Within a part no modules, and no folders of them, import one another in a circle either, not even
for type checking only.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

SIBLINGS = ["access", "plugins", "transports", "storage", "monitor", "pipeline", "admin", "nats"]
RANK = (
    {
        "codec": 0,
        "net": 0,
        "secrets": 0,
        "session": 1,
        "broker": 2,
        "readmodel": 3,
    }
    | dict.fromkeys(SIBLINGS, 4)
    | {"mesh": 5, "workers": 6, "cluster": 6}
)
# These may import everything below.
TOP = {"service", "options", "reload", "faults", "embed", "testing", "bench", "__main__"}
TOP |= {"assembly", "control", "following", "foresight", "gate", "others", "reports", "twistd"}
SHARED = {"mqttd.interfaces", "mqttd.types", "mqttd.config.schema", "mqttd.printable",
          "mqttd.checksum"}  # fmt: skip

# A program beside the broker, which reads the configuration and the password file itself.
PROGRAMS = {
    "mqttd.admin.ctl.main": {"mqttd.config.files"},
    # What `mqttd.service` is where there is one process.
    "mqttd.workers.supervisor": {
        "mqttd.options",
        "mqttd.config.load",
        "mqttd.config.plan",
        "mqttd.control",
    },
    "mqttd.workers.processes": {"mqttd.options", "mqttd.config.load"},
    "mqttd.workers.nodes": {"mqttd.options"},
    "mqttd.workers.configuring": {"mqttd.config.plan"},
    "mqttd.admin.ctl.client": {"mqttd.config.load", "mqttd.config.files"},
    "mqttd.admin.ctl.join": {
        "mqttd.cluster.etcd.client",
        "mqttd.cluster.probe",
        "mqttd.config.files",
        "mqttd.config.load",
        "mqttd.options",
    },
    "mqttd.admin.ctl.init": {"mqttd.config.files"},
    "mqttd.admin.ctl.importing": {
        "mqttd.access.roles.mosquitto",
        "mqttd.config.load",
        "mqttd.config.mosquitto",
        "mqttd.storage.database",
        "mqttd.storage.mosquitto",
        "mqttd.storage.place",
        "mqttd.storage.transfer",
    },
    "mqttd.admin.ctl.events": {"mqttd.pipeline.log.tools"},
    "mqttd.admin.ctl.store": {
        "mqttd.storage.database",
        "mqttd.storage.lines",
        "mqttd.storage.place",
        "mqttd.storage.tools",
        "mqttd.storage.transfer",
        "mqttd.workers.resharding",
    },
    "mqttd.admin.ctl.files": {"mqttd.storage.database", "mqttd.storage.lines"},
    "mqttd.admin.ctl.replay": {"mqttd.pipeline"},
    "mqttd.admin.ctl.acl": {"mqttd.access.acl.rules", "mqttd.access.acl.lint"},
}

PURE = {"codec", "session"}  # no reactor, no clock, no socket, no logging
IMPURE = {"twisted", "zope", "asyncio", "logging", "select", "selectors", "socket", "ssl",
          "threading", "time"}  # fmt: skip


class Import(NamedTuple):
    file: str
    line: int
    module: str  # the importer's dotted name
    target: str  # what it imports, with the name behind "from ... import"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports_in(path: Path) -> tuple[Import, ...]:
    return tuple(_imports_in(path))


def _imports_in(path: Path) -> Iterator[Import]:
    module = module_name(path)
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    file = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text(), file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, module, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, module, f"{base}.{alias.name}")


def tree(*folders: str) -> list[Import]:
    return [
        found
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in imports_in(path)
    ]


def within(target: str, names: set[str]) -> bool:
    return any(target == name or target.startswith(name + ".") for name in names)


def is_wrong(arrow: Import) -> bool:
    """True if `arrow` goes from one part of mqttd to one it must not know."""
    importer, target = arrow.module.split("."), arrow.target.split(".")
    if target[0] != "mqttd" or len(importer) < 2 or len(target) < 2:
        return False
    source, goal = importer[1], target[1]
    if source == goal or source in TOP or within(arrow.target, SHARED):
        return False
    if within(arrow.target, PROGRAMS.get(arrow.module, set())):
        return False
    if goal in RANK and source in RANK:
        return RANK[goal] >= RANK[source]
    if source in {"interfaces", "types"} or (source == "config" and goal != "interfaces"):
        return goal not in {"codec"}
    # What is left: `mqttd.compiled` and the package's own plumbing.
    return goal in TOP | RANK.keys() | {"config"}


def test_no_arrow_points_back() -> None:
    wrong = [str(arrow) for arrow in tree("mqttd") if is_wrong(arrow)]
    assert not wrong, "\n".join(wrong)


def test_codec_and_session_know_nothing_else_of_the_ground_floor() -> None:
    wrong = [
        str(found)
        for found in tree(*(f"mqttd/{part}" for part in sorted(PURE)))
        if within(found.target, {"mqttd.net", "mqttd.secrets"})
    ]
    assert not wrong, "\n".join(wrong)


def test_codec_and_session_know_no_reactor_clock_socket_or_log() -> None:
    wrong = [
        str(found)
        for found in tree(*(f"mqttd/{part}" for part in sorted(PURE)))
        if found.target.split(".")[0] in IMPURE
    ]
    assert not wrong, "\n".join(wrong)


def circles(arrows: list[Import]) -> list[set[str]]:
    """The groups of modules that can be reached from one another."""
    modules = {arrow.module for arrow in arrows}
    goals: dict[str, set[str]] = {module: set() for module in modules}
    for arrow in arrows:
        target = arrow.target
        while target and target not in modules:
            target = target.rpartition(".")[0]
        if target and target != arrow.module:
            goals[arrow.module].add(target)

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            for goal in goals[todo.pop()] - found:
                found.add(goal)
                todo.append(goal)
        return found

    reach = {module: reached(module) for module in modules}
    rounds = {
        frozenset(goal for goal in reach[module] if module in reach[goal])
        for module in modules
        if module in reach[module]
    }
    return [set(each) for each in sorted(rounds, key=sorted)]


def test_no_modules_import_one_another_in_a_circle() -> None:
    wrong = [" <-> ".join(sorted(circle)) for circle in circles(tree("mqttd", "mqttd_plugins"))]
    assert not wrong, "\n".join(wrong)


def test_what_is_a_circle() -> None:
    pairs = [("a.b", "a.c.name"), ("a.c", "a.d"), ("a.d", "a.b"), ("a.e", "a.b"), ("a.b", "x")]
    arrows = [Import("f.py", 1, module, target) for module, target in pairs]
    assert circles(arrows) == [{"a.b", "a.c", "a.d"}]


def rooms(arrows: list[Import]) -> list[Import]:
    """The arrows between the rooms of a part: its folders, and what stands beside them."""
    folders = {module_name(path.parent) for path in (ROOT / "mqttd").rglob("__init__.py")}

    def room(name: str) -> str:
        while name and name not in folders:
            name = name.rpartition(".")[0]
        return name + "." if name else ""

    return [
        Import(arrow.file, arrow.line, source, goal)
        for arrow in arrows
        if not arrow.module.endswith(".__main__")
        if (source := room(arrow.module)) and (goal := room(arrow.target))
        if source.split(".")[1:2] == goal.split(".")[1:2]
    ]


def test_no_rooms_of_a_part_import_one_another_in_a_circle() -> None:
    wrong = [" <-> ".join(sorted(circle)) for circle in circles(rooms(tree("mqttd")))]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_longer_than_one_idea_takes() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for part in ("mqttd", "mqttd_plugins")
        for path in (ROOT / part).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert not long, f"more than 500 lines: take them apart, {long}"


def test_pyspark_is_imported_in_one_place() -> None:
    wrong = [
        str(found)
        for found in tree("mqttd", "mqttd_plugins")
        if within(found.target, {"pyspark"})
        and not within(found.module, {"mqttd.pipeline.spark", "mqttd_plugins.spark"})
    ]
    assert not wrong, "\n".join(wrong)


def test_ldap3_is_imported_in_one_place() -> None:
    """Its newest release is of 2021: another library would take the place of one module."""
    importers = {
        found.module for found in tree("mqttd", "mqttd_plugins") if within(found.target, {"ldap3"})
    }
    assert importers == {"mqttd_plugins.auth_ldap.plugin"}


def test_plugins_know_only_what_a_plugin_author_is_promised() -> None:
    promised = SHARED | {
        "mqttd.codec", "mqttd.testing", "mqttd.plugins.declare", "mqttd.plugins.backends",
    }  # fmt: skip
    wrong = [
        str(found)
        for found in tree("mqttd_plugins")
        if within(found.target, {"mqttd"})
        and not within(found.target, promised)
        # The pipeline needs nothing of the broker either, and this plugin is its way in.
        and not (within(found.module, {"mqttd_plugins.spark"})
                 and within(found.target, {"mqttd.pipeline"}))
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_types_need_the_standard_library_only() -> None:
    foreign = {"twisted", "zope", "msgspec", "mqttd"}
    wrong = [str(found) for found in imports_in(ROOT / "mqttd/types.py")
             if within(found.target, foreign)]  # fmt: skip
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "target", "wrong"),
    [
        ("mqttd.session.session", "mqttd.codec.packets.Publish", False),
        ("mqttd.codec.parser", "mqttd.session.session", True),
        ("mqttd.session.session", "mqttd.broker.routing.router", True),
        ("mqttd.broker.broker", "mqttd.session.session", False),
        ("mqttd.broker.broker", "mqttd.access.chain", True),
        ("mqttd.access.chain", "mqttd.storage.memory", True),
        ("mqttd.access.auth.username", "mqttd.secrets.passwords", False),
        ("mqttd.net.sockets", "mqttd.codec.topic", True),
        ("mqttd.access.chain", "mqttd.config.schema.AuthConfig", False),
        ("mqttd.access.chain", "mqttd.config.load", True),
        ("mqttd.broker.broker", "mqttd.interfaces.IRegistry", False),
        ("mqttd.transports.engine", "mqttd.service", True),
        ("mqttd.service", "mqttd.transports.engine", False),
        ("mqttd.types", "mqttd.broker.hooks.points", True),
        ("mqttd.admin.ctl.client", "mqttd.config.load.load", False),
        ("mqttd.admin.api", "mqttd.config.load.load", True),
    ],
)
def test_the_rule_itself(module: str, target: str, wrong: bool) -> None:
    assert is_wrong(Import("f.py", 1, module, target)) is wrong
