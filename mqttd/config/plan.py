"""What a reload will do: two configurations compared key by key, and the part that can be applied.

    in force ──┐                 ┌─ Change(key, before, after, applies)   what an operator is shown
               ├─> differences ──┤
    the file ──┘                 └─> merged: the keys that a reload applies from the file, the
                                     others as they are in force

Whether a reload applies a key is said once, in the schema (`Option.reload`): this module applies by
it, the reference page is printed from it, and `tests/unit/test_reload.py` holds a reloaded broker
to be the same as one that was started with the new value, for every key.

Promise: nothing is read and nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mqttd.config.options import OPTIONS, Option
from mqttd.config.schema import Config

__all__ = ["Change", "differences", "merged", "option_of", "texts", "values"]

#: What a changed key does to whom, by its scope.
_EFFECTS: Final = {
    "broker": "in force at once",
    "listener": "in force at once, connections stay",
    "connection": "in force for connections to come",
    "session": "in force at once, or when a client connects again",
    "message": "in force from the next message on",
}
#: Keys that a queue takes when it begins.
_OF_QUEUES: Final = ("mqueue.max_length", "mqueue.max_bytes", "mqueue.priorities")


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value in the file is not the one in force; the values are as TOML has them.

    `key` of a listener that comes or goes is its table, ``listener.ssl.default``, and of what it
    has not, the value is empty.
    """

    key: str
    before: str
    after: str
    applies: bool
    effect: str

    @property
    def is_listener(self) -> bool:
        """Whether a whole listener comes or goes."""
        return self.key.startswith("listener.") and self.key.count(".") == 2

    @property
    def text(self) -> str:
        """The change as a line."""
        if self.is_listener:
            return f"{self.key}: {self.effect}"
        return f"{self.key}: {self.before or '-'} -> {self.after or '-'}: {self.effect}"

    def describe(self) -> dict[str, object]:
        """The change as the API shows it."""
        return {
            "text": self.text,
            "key": self.key,
            "before": self.before,
            "after": self.after,
            "applies": self.applies,
            "effect": self.effect,
        }


def differences(before: Config, after: Config) -> list[Change]:
    """Every key that differs, in the order of the file."""
    had, wanted = dict(values(before)), dict(values(after))
    gone, come = _listeners(before) - _listeners(after), _listeners(after) - _listeners(before)
    found = [Change(where, "", "new", True, "is opened") for where in sorted(come)]
    found += [
        Change(where, "open", "", True, "is closed, its connections end") for where in sorted(gone)
    ]
    for path, value in wanted.items():
        if path not in had or had[path] == value:
            continue
        option = option_of(path)
        effect = _EFFECTS[option.scope]
        if not option.reload:
            effect = _restart(path)
        elif path in _OF_QUEUES:
            effect = "in force for queues that begin from now on"
        texts = option.write(had[path]), option.write(value)
        found.append(Change(path, *texts, option.reload, effect))
    return found


def merged(before: Config, after: Config) -> Config:
    """The configuration that a reload puts in force: `after`, but for what needs a restart."""
    tables: dict[str, Any] = {}
    for name in Config.__struct_fields__:
        if name == "listener":
            tables[name] = _merged_listeners(before, after)
        elif name in ("path", "given"):
            tables[name] = getattr(after, name)
        else:
            tables[name] = _merged(name, getattr(before, name), getattr(after, name))
    return Config(**tables)


def values(config: Config) -> Iterator[tuple[str, Any]]:
    """Dotted path and loaded value of every key, those of each listener by its name."""
    for table in Config.__struct_fields__:
        if table == "listener":
            for kind, names in config.listener.items():
                for name, settings in names.items():
                    yield from _values(f"listener.{kind}.{name}", settings)
        elif table not in ("path", "given"):
            yield from _values(table, getattr(config, table))


def option_of(path: str) -> Option:
    """The key at a path that may name a listener."""
    steps = path.split(".")
    if steps[0] == "listener":
        steps[2] = "NAME"
    return OPTIONS[".".join(steps)]


def _values(above: str, struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            yield from _values(f"{above}.{name}", value)
        else:
            yield f"{above}.{name}", value


def _merged(above: str, before: msgspec.Struct, after: msgspec.Struct) -> msgspec.Struct:
    chosen: dict[str, Any] = {}
    for name in before.__struct_fields__:
        path = f"{above}.{name}"
        had, wanted = getattr(before, name), getattr(after, name)
        if isinstance(had, msgspec.Struct):
            chosen[name] = _merged(path, had, wanted)
        else:
            chosen[name] = wanted if option_of(path).reload else had
    return type(before)(**chosen)


def _merged_listeners(before: Config, after: Config) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind, names in after.listener.items():
        for name, settings in names.items():
            had = before.listener.get(kind, {}).get(name)
            if had is not None:
                settings = _merged(f"listener.{kind}.{name}", had, settings)
            found.setdefault(kind, {})[name] = settings
    return found


def _listeners(config: Config) -> set[str]:
    return {f"listener.{kind}.{name}" for kind, names in config.listener.items() for name in names}


def _restart(path: str) -> str:
    steps = path.split(".")
    if steps[0] == "listener":
        return f"waits for `mqttd-ctl listeners restart {steps[1]}:{steps[2]}`"
    return "waits for a restart of the broker"


def texts(changes: Iterable[Change]) -> str:
    """The keys of some changes, for a line."""
    return ", ".join(change.key for change in changes)
