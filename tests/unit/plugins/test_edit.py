"""A plugin's file is changed line by line, and stays as it was where that would not be sound."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from mqttd.plugins.edit import Editor, edited
from mqttd.types import PluginError


class Settings(Struct, frozen=True, kw_only=True):
    url: str
    many: Annotated[int, Meta(ge=1, le=10)] = 3
    password: str = ""
    topics: list[str] = []


TEXT = """\
# where it is
url = "http://a"
many = 4  # or so
password = "hush"

[mqttd]
per_call = 1.0
"""


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    path = tmp_path / "plugins" / "x.conf"
    path.parent.mkdir()
    path.write_text(TEXT)
    path.chmod(0o640)
    return Editor(str(path), Settings)


def test_fields_by_the_schema_and_no_secret(editor: Editor) -> None:
    found = {field["name"]: field for field in editor.fields()}
    assert found["many"]["value"] == 4 and found["many"]["given"]
    assert found["many"]["schema"]["maximum"] == 10
    assert found["url"]["required"]
    assert (found["password"]["secret"], found["password"]["value"]) == (True, None)
    assert "hush" not in str(found)
    assert not found["topics"]["given"]


def test_a_change_keeps_comments_other_keys_and_the_mode(editor: Editor) -> None:
    editor.change({"many": 7, "topics": ["a/#", 'b"\\'], "password": None})
    text = Path(editor.path).read_text()
    assert text.startswith('# where it is\nurl = "http://a"\nmany = 7\n')
    assert tomllib.loads(text) == {
        "url": "http://a", "many": 7, "topics": ["a/#", 'b"\\'], "mqttd": {"per_call": 1.0}
    }  # fmt: skip
    assert stat.S_IMODE(os.stat(editor.path).st_mode) == 0o640
    assert os.listdir(os.path.dirname(editor.path)) == ["x.conf"]


@pytest.mark.parametrize("changes", [{"many": 11}, {"url": None}, {"no_such_key": 1}, {"a.b": 1}])
def test_what_would_not_be_sound_is_not_written(editor: Editor, changes: dict[str, Any]) -> None:
    with pytest.raises(PluginError) as raised:
        editor.change(changes)
    assert ".check-" not in str(raised.value)
    assert Path(editor.path).read_text() == TEXT


def test_a_file_that_is_not_there_is_made_for_the_broker_alone(tmp_path: Path) -> None:
    editor = Editor(str(tmp_path / "new" / "x.conf"), Settings)
    editor.change({"url": "http://b"})
    assert stat.S_IMODE(os.stat(editor.path).st_mode) == 0o600
    assert Path(editor.path).read_text() == 'url = "http://b"\n'


def test_a_value_of_several_lines_is_left_to_an_editor() -> None:
    with pytest.raises(PluginError, match="editor"):
        edited('topics = [\n  "a",\n  "b",\n]\n', {"topics": ["c"]})


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c-d", "e_f"]),
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text() | st.lists(st.text())
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.sampled_from(["", "a = 1", "a = 1\n[t]\nb = 2\n", "# no\n\n[t]\nb = 2", "\"b\" = 'x'\n"]),
)  # fmt: skip
def test_whatever_is_given_is_what_the_file_says_then(changes: dict[str, Any], text: str) -> None:
    wanted = {**tomllib.loads(text), **changes}
    assert tomllib.loads(edited(text, changes)) == {
        key: value for key, value in wanted.items() if value is not None
    }
