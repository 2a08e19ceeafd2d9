"""The configurations of plugins that authenticate: those shown and those shipped can be read."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from mqttd.plugins.settings import read_settings

ROOT = Path(__file__).parents[3]
NAMES = ("auth_http", "auth_ldap", "auth_mongo", "auth_mysql", "auth_pgsql", "auth_redis")


@pytest.mark.parametrize("name", NAMES)
def test_examples_and_shipped_files_can_be_read(name: str) -> None:
    schema = import_module(f"mqttd_plugins.{name}.plugin").Settings
    for path in (f"docs/examples/plugins/{name}.conf", f"mqttd_plugins/{name}/{name}.conf"):
        read_settings(str(ROOT / path), schema)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_in_the_shipped_file(name: str) -> None:
    schema = import_module(f"mqttd_plugins.{name}.plugin").Settings
    text = (ROOT / f"mqttd_plugins/{name}/{name}.conf").read_text()
    shown = set(re.findall(r"(?m)^#? ?\[?(\w+)(?:\]| =)", text))
    assert {field.encode_name for field in msgspec.structs.fields(schema)} <= shown
