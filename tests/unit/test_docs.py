"""The documentation holds together: links lead somewhere, examples are files, nothing is stale."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import runpy
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mqttd.access.acl.conf import read_acl
from mqttd.broker.hooks.points import POINTS
from mqttd.config.load import load
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.channel.channel import STATES
from mqttd.session.ground.message import Message
from mqttd.types import OK, STOP

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted(
    path
    for path in (DOCS / "examples").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
PAGES = sorted(DOCS.rglob("*.md"))
#: What is read before the documentation is.
FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a reader of a tutorial writes; tests/integration/test_plugins_story.py does as well.
TYPED = re.compile(
    r"^<!-- (?:file|method|line): .*? -->\n```\w+\n.*?^```$", re.MULTILINE | re.DOTALL
)
INCLUDE = re.compile(r"^<!-- include: (\S+) -->\n```", re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def load_script(path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("generate_docs", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


GENERATE: Any = load_script(ROOT / "scripts/generate-docs")


def links(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text("utf-8"))
    return [target for target in LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text("utf-8"))
    return {GENERATE.anchor(heading.strip()) for heading in re.findall(r"(?m)^#+ (.*)$", text)}


# -- links


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name)
def test_modules_named_are_modules_that_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    parts = {path.name for path in (ROOT / "mqttd").iterdir() if path.is_dir()}
    for found in re.findall(r"`(?:mqttd/)?([a-z]+/[\w./-]*?)/?`", text):
        if found.partition("/")[0] in parts:
            path = ROOT / "mqttd" / found
            assert path.exists() or path.with_suffix(".py").exists(), found
    for found in re.findall(r"`mqttd\.((?:[a-z_]+\.)*[a-z_]+)\b", text):
        first, second, *_ = [*found.split("."), ""]
        path = ROOT / "mqttd" / first
        if path.is_dir() and second:
            there = (path / second).is_dir() or (path / f"{second}.py").exists()
            assert there or re.search(rf"\b{second}\b", (path / "__init__.py").read_text()), found


@pytest.mark.parametrize("page", sorted((DOCS / "design").rglob("*.md")), ids=name)
def test_tables_of_modules_name_what_is_there(page: Path) -> None:
    """A row that begins with a module: the last word of its path, whatever stands before it."""
    there = {path.stem for path in (ROOT / "mqttd").rglob("*")}
    for row in re.findall(r"(?m)^\| (`[^|]*) \|", page.read_text("utf-8")):
        if not re.fullmatch(r"(?:`[a-z_/]+`(?:, )?)+", row):
            continue  # of something else
        for path in re.findall(r"`([a-z_/]+)`", row):
            assert path.split("/")[-1] in there, path


def test_the_page_of_alarms_has_every_one() -> None:
    page = (DOCS / "howto/watch.md").read_text("utf-8")
    told = r"\.(?:activate\(|_?alarm\(|_tell\(broker, )f?\"([\w:. ]+)"
    named = re.compile(rf"{told}|ALARM: Final = \"(\w+)")
    found = {
        name[0] or name[1]
        for path in sorted((ROOT / "mqttd").rglob("*.py"))
        for name in named.findall(path.read_text("utf-8"))
    }
    assert {"store_damaged", "worker_down", "configuration", "disk_low"} <= found
    for alarm in found - {"process"}:  # that of a plugin: plugin.NAME.process
        assert f"`{'cluster_...' if alarm.startswith('cluster_') else alarm}" in page, alarm


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        file, _, fragment = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), f"{name(page)} links out of the project: {link}"
        if fragment:
            assert fragment in anchors(target), f"{name(page)}: {link} has no such heading"


def test_the_index_links_every_page() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}
    lost = [name(page) for page in PAGES if page != index and page not in linked]
    assert not lost, f"link these from docs/index.md: {lost}"


# -- examples


def test_the_overview_names_every_folder() -> None:
    text = (DOCS / "design/overview.md").read_text("utf-8")
    for folder in sorted(path.parent for path in (ROOT / "mqttd").glob("*/**/__init__.py")):
        part, *rooms = folder.relative_to(ROOT / "mqttd").parts
        assert f"`mqttd/{part}`" in text, folder
        if rooms:
            row = rf"^\|[^|]*`{part}/([^|]*`)?{rooms[0]}`"
            assert re.search(row, text, re.MULTILINE), folder


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_programs_and_files_shown_are_files_that_exist(page: Path) -> None:
    """Programs and files are never written in a page: they are included, and so tested.

    Reference pages may show fragments besides, in the language they are about; what a reader is to
    write is marked, and written by the test that follows the page.
    """
    text = page.read_text("utf-8")
    for file in INCLUDE.findall(text):
        assert ROOT / file in EXAMPLES, f"{name(page)} includes {file}, which is not an example"
    rest = TYPED.sub("", GENERATE.BLOCK.sub("", text))
    written = [language for language, _ in FENCE.findall(rest) if language not in {"text", "sh"}]
    if page.parent == DOCS / "reference":
        written = [language for language in written if language == "python"]
    assert not written, f"{name(page)}: put these blocks in docs/examples/: {written}"


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_every_example_is_shown_on_a_page(example: Path) -> None:
    assert any(name(example) in INCLUDE.findall(page.read_text("utf-8")) for page in PAGES)


def test_the_example_configurations_load(tmp_path: Path) -> None:
    for example in EXAMPLES:
        plugin = example.parent.name == "plugins"  # read with the plugin that it is for
        if example.name.endswith(".conf") and example.name != "acl.conf" and not plugin:
            load(str(example), {})


def test_the_example_rules_can_be_read() -> None:
    for example in EXAMPLES:
        if example.name == "acl.conf":
            assert read_acl(example)


def test_the_example_hooks_do_what_they_say() -> None:
    errors: list[object] = []
    hooks = Hooks(on_error=lambda *error: errors.append(error))
    runpy.run_path(str(DOCS / "examples/hook_publish.py"))["hook_all"](hooks)
    result, message = hooks.run_hooks("message.publish", (), Message(7, "raw/b", b"short"))
    assert (result, message.id, message.topic) == (OK, 7, "site-1/raw/b")
    assert hooks.run_hooks("message.publish", (), given := Message(9, "a", b"")) == (OK, given)
    assert hooks.run_hooks("message.publish", (), Message(8, "a/b", bytes(1001))) == (STOP, None)
    assert not errors


# -- generated parts


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_generated_parts_are_fresh(page: Path) -> None:
    """Run ``scripts/generate-docs`` after a change of a hook point, a state or an example."""
    assert page.read_text("utf-8") == GENERATE.pages()[page]


def test_the_reference_has_each_hook_point_once() -> None:
    text = (DOCS / "reference/hooks.md").read_text("utf-8")
    assert re.findall(r"(?m)^### (.*)$", text) == list(POINTS)
    for point in POINTS.values():
        assert all(f"`{arg}`" in text for arg in point.args)
        assert (f"| [`{point.name}`](#" in text) and point.stop in text


def test_every_hook_point_is_called_by_the_broker() -> None:
    assert GENERATE.called_points() == set(POINTS)


def test_the_session_page_shows_the_states_of_a_channel() -> None:
    text = (DOCS / "design/session.md").read_text("utf-8")
    assert f"<!-- states -->\n```text\n{GENERATE.picture(STATES)}```\n" in text


def test_a_picture_shows_every_arrow() -> None:
    states = {1: ("a", (2, 3)), 2: ("bc", (3,)), 3: ("d", ())}
    assert GENERATE.picture(states) == (
        "+---+     +----+     +---+\n"
        "| a |---->| bc |---->| d |\n"
        "+---+     +----+     +---+\n"
        "  |                    ^\n"
        "  '--------------------'\n"
    )
    assert "| a |     | b |\n" in GENERATE.picture({1: ("a", ()), 2: ("b", ())})


def test_the_check_tells_a_stale_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs/reference/hooks.md"
    monkeypatch.setattr(GENERATE, "HOOKS", page)
    monkeypatch.setattr(GENERATE, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(GENERATE, "hooks_page", lambda: "new\n")
    monkeypatch.setattr(GENERATE, "ROOT", tmp_path)
    page.parent.mkdir(parents=True)
    page.write_text("old\n", "utf-8")
    assert GENERATE.main(["--check"]) == 1
    assert "docs/reference/hooks.md is out of date" in capsys.readouterr().out
    assert GENERATE.main([]) == 0
    assert GENERATE.main(["--check"]) == 0


# -- changes


def test_every_change_is_one_sentence_of_a_known_kind() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in settings["type"]}
    for fragment in (ROOT / "changelog.d").glob("*.md"):
        if fragment.name == "README.md":
            continue
        assert fragment.name.split(".")[1] in kinds, f"{fragment.name}: its kind is none of {kinds}"
        lines = fragment.read_text("utf-8").splitlines()
        assert len(lines) == 1 and lines[0][0] != "-", f"{fragment.name}: not one line of text"
