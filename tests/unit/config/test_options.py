"""Sizes, times and addresses: how one configuration value is read and written."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.config.options import (
    OPTIONS,
    format_duration,
    format_size,
    parse_bind,
    parse_duration,
    parse_size,
)
from mqttd.config.schema import NEVER


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512B", 512),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("1.5MiB", 1572864),
        ("1MB", 1_000_000),
        ("2GB", 2_000_000_000),
        ("1GiB", 1 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_carry_binary_or_decimal_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "KiB", "-1", "1.5", "0.3KB4", "64K", "1 0", "1e3", "٣KiB", "1PiB", "9" * 30]
)
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("20us", 0.00002),
        ("250ms", 0.25),
        ("30s", 30),
        ("1.5s", 1.5),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        ("never", NEVER),
    ],
)
def test_times_carry_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "5 min", "Never", "1y", "1h30m", "4294967295s", "9999999w"]
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 1 << 50))
def test_every_size_survives_writing_and_reading(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, NEVER))
def test_every_whole_time_survives_writing_and_reading(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 10_000_000))
def test_every_microsecond_survives_writing_and_reading(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-12)


@given(st.integers(0, 10_000_000))
def test_every_millisecond_survives_writing_and_reading(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("[::1]:1883", ("::1", 1883)),
        ("[::]:0", ("::", 0)),
        (":1883", ("", 1883)),
        ("localhost:65535", ("localhost", 65535)),
        ("mqtt-1.example.org:0", ("mqtt-1.example.org", 0)),
    ],
)
def test_addresses_name_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_bind(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1883",
        "localhost",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:1e3",
        "127.0.0:1883",
        "300.0.0.1:1883",
        "::1:1883",
        "[::1]",
        "[127.0.0.1]:1883",
        "a b:1883",
        "*:1883",
        "tcp://0.0.0.0:1883",
    ],
)
def test_an_address_without_a_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bind(text)


def test_every_default_is_a_value_the_file_may_hold() -> None:
    """A default can be written into the file, is within its range and reads back the same."""
    wrong = []
    for option in OPTIONS.values():
        written = tomllib.loads(f"value = {option.write(option.default)}")["value"]
        value = option.read(written)
        same = value == option.default and type(value) is type(option.default)
        if not same or (option.path == "admin.socket" and written != ""):
            wrong.append(option.path)
    assert not wrong


def test_every_default_is_a_value_the_environment_may_hold() -> None:
    wrong = []
    for option in OPTIONS.values():
        text = option.write(option.default)
        if option.read(option.read_text(text.strip('"'))) != option.default:
            wrong.append(option.path)
    assert not wrong


def test_every_key_is_described() -> None:
    """The operator reads one sentence, what the key applies to and whether a reload applies it."""
    wrong = []
    for option in OPTIONS.values():
        text = option.description
        sentence = (text[0].isupper() or text[0] == "`") and text.endswith(".")
        if not sentence or ". " in text.replace("`_ . @ -`", ""):
            wrong.append(f"{option.path}: {text}")
        if option.scope not in ("broker", "listener", "connection", "session", "message"):
            wrong.append(f"{option.path}: {option.scope}")
        if not isinstance(option.reload, bool) or not option.expected:
            wrong.append(f"{option.path}: reload, or what is expected")
        bounds = (option.about.ge, option.about.le)
        if option.kind in ("size", "duration", "count") and None in bounds:
            wrong.append(f"{option.path}: {bounds}")
    assert not wrong
