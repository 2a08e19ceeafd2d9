"""The reference of the pipeline is complete: every option, key, column, metric and code."""

from __future__ import annotations

import ast
import builtins
import json
import re
import tomllib
from pathlib import Path

import msgspec

from mqttd.pipeline.log.schema import COLUMNS, EVENTS
from mqttd.pipeline.spark.options import NOT_HERE, READ_OPTIONS
from mqttd_plugins.spark.config import SparkConfig

DOCS = Path(__file__).parents[3] / "docs"
SPARK = (DOCS / "reference/spark.md").read_text()
LOG = (DOCS / "reference/event-log.md").read_text()


def test_every_option_is_explained() -> None:
    for name in (*READ_OPTIONS, *NOT_HERE):
        assert re.search(rf"^\| .*`{name}`", SPARK, re.MULTILINE), name


def test_every_key_of_the_plugin_is_explained_with_its_default() -> None:
    for part in msgspec.structs.fields(SparkConfig):
        row = re.search(rf"^\| `{part.name}` \| `(.*?)` \|", SPARK, re.MULTILINE)
        assert row is not None, part.name
        default = part.default
        if isinstance(default, tuple):
            default = list(default)
        assert tomllib.loads(f"x = {row[1]}")["x"] == default, part.name


def test_the_example_of_a_configuration_is_one() -> None:
    text = (DOCS / "examples/plugins/spark.conf").read_text()
    msgspec.convert(tomllib.loads(text), SparkConfig)


def test_columns_are_the_same_in_docs_log_and_spark() -> None:
    for name, (kind, what) in COLUMNS.items():
        assert f"| `{name}` | {kind} | {what} |" in LOG, name


def test_every_event_has_its_code() -> None:
    text = " ".join(LOG.split())
    for code, name in enumerate(EVENTS):
        assert f"{code} {name}" in text


def test_the_commented_configuration_has_every_key_with_its_default() -> None:
    text = (DOCS.parent / "mqttd_plugins/spark/spark.conf").read_text()
    given = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    assert list(given) == [part.name for part in msgspec.structs.fields(SparkConfig)]
    assert msgspec.convert(given, SparkConfig) == SparkConfig()


def test_every_plugin_has_a_readme_and_a_configuration_that_are_installed() -> None:
    setup = (DOCS.parent / "setup.cfg").read_text()
    for folder in (DOCS.parent / "mqttd_plugins").iterdir():
        if (folder / "__init__.py").is_file():
            for name in ("README.md", f"{folder.name}.conf"):
                assert (folder / name).is_file(), (folder, name)
            part = setup.partition(f"mqttd_plugins.{folder.name} =\n")[2].splitlines()[:2]
            assert [one.strip() for one in part] == ["README.md", f"{folder.name}.conf"]


def test_the_notebook_does_with_a_broker_of_ones_own() -> None:
    """Without the cells that it says, no name is missing in the others."""
    cells = json.loads((DOCS / "howto/spark-notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    own = re.search(r"^# With a broker of your own: (.*)", code[0], re.MULTILINE)
    assert own is not None
    known = set(dir(builtins))
    for text in (code[0], own[1], *code[3:9]):
        used = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
            elif isinstance(node, ast.alias):
                known.add(node.asname or node.name)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
        assert not used - known
