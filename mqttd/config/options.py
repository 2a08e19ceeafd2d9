"""One configuration key as data: its type, default and range, how its text is read and written.

    "64KiB" ──parse_size──> 65536 ──format_size──> "64KiB"
    "5m" ──parse_duration──> 300 ──format_duration──> "5m"

`OPTIONS` lists every key of the schema by dotted path, a listener's name standing as ``NAME``:
the loader looks keys up in it, the reference page and the shipped file are printed from it.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from mqttd.config.schema import DAY, GIB, HOUR, KIB, LISTENER_KINDS, MIB, MINUTE, NEVER, Config

__all__ = [
    "OPTIONS",
    "TABLES",
    "Option",
    "format_duration",
    "format_size",
    "parse_bind",
    "parse_duration",
    "parse_size",
]

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB,
}  # fmt: skip
_TIME_UNITS: Final = {
    "us": Fraction(1, 1_000_000), "ms": Fraction(1, 1000), "s": Fraction(1),
    "m": Fraction(MINUTE), "h": Fraction(HOUR), "d": Fraction(DAY), "w": Fraction(7 * DAY),
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Option:
    """One key of the configuration file.

    `path` is dotted, with ``NAME`` for a listener's name; `type` is the schema's annotation;
    `default` is the loaded value (bytes, seconds); `about` is what the schema says of the key.
    """

    path: str
    type: Any
    default: Any
    about: msgspec.Meta

    @property
    def name(self) -> str:
        """The key inside its table."""
        return self.path.rpartition(".")[2]

    @property
    def table(self) -> str:
        """The table the key stands in, ``auth.username``."""
        return self.path.rpartition(".")[0]

    @property
    def description(self) -> str:
        """One sentence for the operator."""
        return self.about.description or ""

    @property
    def kind(self) -> str:
        """``size``, ``duration``, ``count``, ``path``, ``bind`` or ``plain``."""
        return str(self._extra("kind"))

    @property
    def scope(self) -> str:
        """What the value applies to: broker, listener, connection, session or message."""
        return str(self._extra("scope"))

    @property
    def reload(self) -> bool:
        """Whether a reload applies a changed value; otherwise a restart does."""
        return bool(self._extra("reload"))

    @property
    def choices(self) -> tuple[str, ...]:
        """The values allowed, where only some are."""
        return get_args(self.base) if get_origin(self.base) is Literal else ()

    @property
    def base(self) -> Any:
        """The type without its annotations."""
        return get_args(self.type)[0]

    @property
    def range(self) -> str:
        """Which values of the type are allowed, in words; empty where all are."""
        low, high = self.about.ge, self.about.le
        if self.kind == "size":
            return f"{format_size(int(low or 0))} to {format_size(int(high or 0))}"
        if self.kind == "duration":
            if high == NEVER:
                least = f"at least {format_duration(low)}" if low else "any time"
                return f'{least}, or "never"'
            return f"{format_duration(low or 0)} to {format_duration(high or 0)}"
        if self.kind == "count":
            return " to ".join(
                f"{end:_}" if end and end > 99_999 else f"{end}" for end in (low, high)
            )
        return ", ".join(f'"{choice}"' for choice in self.choices)

    @property
    def type_name(self) -> str:
        """The type in the operator's words."""
        if self.kind in ("size", "path"):
            return self.kind
        if self.kind == "duration":
            return "time" if self.base is float else "time, whole seconds"
        if self.kind == "bind":
            return "address"
        if self.choices:
            return "choice"
        if get_origin(self.base) in (Union, UnionType):
            return "whole number or word"
        names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
        return names.get(self.base, "list" if get_origin(self.base) is tuple else "table")

    @property
    def expected(self) -> str:
        """What a value must be, to end the sentence "expected …"."""
        if (expects := self._extra("expects")) is not None:
            return str(expects)
        if self.kind == "size":
            return f'a size such as "64KiB", {self.range}'
        if self.kind == "duration":
            whole = "" if self.base is float else " in whole seconds"
            high = self.about.le
            such = "30s" if high is None or high >= 30 else format_duration(high)
            return f'a time{whole} such as "{such}", {self.range}'
        if self.kind == "bind":
            return 'an address and port such as "127.0.0.1:1883", "[::1]:1883" or ":1883"'
        if self.choices:
            return f"one of {self.range}"
        if self.type_name == "list":
            return 'a list of different names such as ["one", "two"]'
        if self.base is bool:
            return "true or false"
        return f"a {self.type_name} from {self.range}" if self.range else f"a {self.type_name}"

    def read(self, value: object) -> Any:
        """The loaded value of what TOML gave; ValueError where it is not `expected`."""
        if isinstance(value, str) and self.kind != "path":
            value.encode()  # the environment may hold bytes that are not UTF-8
        if self.kind == "size" and isinstance(value, str):
            value = parse_size(value)
        elif self.kind == "duration" and (value != 0 or isinstance(value, bool)):
            if not isinstance(value, str):
                raise ValueError("a time needs its unit")
            value = parse_duration(value)
        elif self.kind == "bind" and isinstance(value, str):
            parse_bind(value)
        elif isinstance(value, list) and len({str(item) for item in value}) < len(value):
            raise ValueError("named twice")
        return msgspec.convert(value, self.type)

    def read_text(self, text: str) -> object:
        """What TOML would have given for the text of an environment variable.

        Text, sizes, times, paths and choices stand bare; numbers, booleans, lists and tables as in
        TOML, a list also as names with commas. Text that cannot be read comes back as it is, for
        `read` to refuse.
        """
        if self.base is str or self.choices or self.kind in ("size", "duration"):
            return text
        if self.type_name == "list" and not text.lstrip().startswith("["):
            return [item.strip() for item in text.split(",") if item.strip()]
        try:
            document = tomllib.loads(f"value = {text.lower() if self.base is bool else text}")
        except tomllib.TOMLDecodeError:
            return text
        return document["value"] if len(document) == 1 else text

    def write(self, value: Any) -> str:
        """A loaded value as TOML text."""
        if self.kind == "size":
            return f'"{format_size(value)}"'
        if self.kind == "duration":
            return f'"{format_duration(value)}"'
        if isinstance(value, tuple):
            return json.dumps(list(value), ensure_ascii=False)
        if isinstance(value, dict):
            items = ", ".join(
                f"{json.dumps(key)} = {json.dumps(item)}" for key, item in value.items()
            )
            return f"{{ {items} }}" if items else "{}"
        return json.dumps(value, ensure_ascii=False)

    def _extra(self, key: str) -> object:
        return (self.about.extra or {}).get(key)


def parse_size(text: str) -> int:
    """Bytes of ``"64KiB"``, ``"1.5MB"``, ``"4096"``; ValueError where that is not a whole number.

    KiB, MiB, GiB, TiB are powers of 1024, KB, MB, GB, TB of 1000; case does not matter.
    """
    found = _QUANTITY.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError("not a size")
    size = Fraction(found[1]) * unit
    if size.denominator != 1:
        raise ValueError("not a whole number of bytes")
    return int(size)


def parse_duration(text: str) -> int | float:
    """Seconds of ``"20us"``, ``"250ms"``, ``"30s"``, ``"5m"``, ``"2h"``, ``"1d"``, ``"1w"``,
    ``"never"``.

    ValueError for other text. Whole seconds come back as int. Only 0 may stand without a unit.
    """
    text = text.strip()
    if text == "never":
        return NEVER
    found = _QUANTITY.fullmatch(text)
    unit = _TIME_UNITS.get(found[2]) if found else None
    if found is not None and not found[2] and Fraction(found[1]) == 0:
        return 0
    if found is None or unit is None:
        raise ValueError("not a time")
    seconds = Fraction(found[1]) * unit
    if seconds >= NEVER:
        raise ValueError('too long; say "never"')
    return int(seconds) if seconds.denominator == 1 else float(seconds)


def parse_bind(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[ipv6]:port`` or ``:port`` (host ""); else ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif re.fullmatch(r"[0-9.]+", host):
        ipaddress.IPv4Address(host)
    elif host and not _HOST_NAME.fullmatch(host):
        raise ValueError("not a host")
    return host, int(port)


def format_size(size: int) -> str:
    """The shortest exact text of a number of bytes, ``"64KiB"``."""
    for name, unit in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def format_duration(seconds: float) -> str:
    """The shortest exact text of a number of seconds, ``"5m"``; `NEVER` is ``"never"``."""
    if seconds == NEVER:
        return "never"
    for name, unit in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", 1)):
        if seconds and seconds % unit == 0:
            return f"{int(seconds // unit)}{name}"
    if not seconds:
        return "0s"
    small, parts = ("ms", 1000) if seconds >= 0.001 else ("us", 1_000_000)
    return f"{seconds * parts:.6f}".rstrip("0").rstrip(".") + small


def _tables() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Every table of the file, in its order."""
    for part in msgspec.structs.fields(Config):
        if part.name == "listener":
            yield from ((f"listener.{kind}.NAME", cls) for kind, cls in LISTENER_KINDS.items())
        elif isinstance(part.type, type) and issubclass(part.type, msgspec.Struct):
            yield part.name, part.type
            for inner in msgspec.structs.fields(part.type):
                if get_origin(inner.type) is not Annotated:
                    yield f"{part.name}.{inner.name}", inner.type


def _options() -> Iterator[Option]:
    """Every key of the file, in its order."""
    for table, struct in TABLES.items():
        for part in msgspec.structs.fields(struct):
            if get_origin(part.type) is Annotated:
                default = part.default
                if default is msgspec.NODEFAULT:
                    default = part.default_factory()
                about = part.type.__metadata__[0]
                yield Option(f"{table}.{part.name}", part.type, default, about)


TABLES: Final[dict[str, type[msgspec.Struct]]] = dict(_tables())
"""Dotted path of a table -> the struct that describes it."""

OPTIONS: Final[dict[str, Option]] = {option.path: option for option in _options()}
"""Dotted path of a key -> the key, in the order of the file."""
