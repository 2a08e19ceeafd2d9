"""Write ``etc/mqttd.conf`` and ``docs/reference/configuration.md`` from the schema.

    python -m mqttd.config.reference           writes both, and ``etc/acl.conf``, which stands in
                                               ``mqttd/config``
    python -m mqttd.config.reference --check   writes nothing, fails where one is out of date

The shipped file holds every key as a comment with its default, so it loads to the defaults; the
page holds every key once. Paths count from the current directory, the root of the source tree.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Final

from mqttd.config.options import OPTIONS, TABLES, Option

__all__ = ["SHIPPED", "ACL", "CONF", "PAGE", "conf_text", "main", "page_text"]

CONF: Final = Path("etc/mqttd.conf")
ACL: Final = Path("etc/acl.conf")
PAGE: Final = Path("docs/reference/configuration.md")

_CONF_HEAD: Final = """\
# mqttd configuration, TOML. Every key is here, commented out with its default: take the `#` away
# and change the value. The dashboard alone is switched on, for this machine.
# Reference: docs/reference/configuration.md
#
# Check it without starting:  mqttd --config etc/mqttd.conf --check-config
# Sizes carry units: "512B", "64KiB", "1MiB" (1024), "1MB" (1000). Times too: "20us", "250ms",
# "30s", "5m", "2h", "1d", and "never" where it is allowed. Relative paths count from this file's
# directory.
# An environment variable overrides a key: MQTTD__MQTT__MAX_PACKET_SIZE=64KiB
"""

_PAGE_HEAD: Final = """\
# Configuration

<!-- Written by `python -m mqttd.config.reference` from mqttd/config/schema/. -->

The broker reads one TOML file, `mqttd --config etc/mqttd.conf`. A key that is missing has
its default; a key, type or value the schema does not know stops the start, with all mistakes
listed at once. `mqttd --config FILE --check-config` only checks.

- **Sizes** are text with a unit: `"512B"`, `"64KiB"`, `"1MiB"`, `"1GiB"` count by 1024, `"1KB"`,
  `"1MB"`, `"1GB"` by 1000; a bare number is bytes.
- **Times** are text with a unit: `"20us"`, `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`,
  `"1w"`; `"never"` where the range says so; only 0 stands bare. *Whole seconds* marks times that
  travel in packets.
- **Paths** that are relative count from the directory of the configuration file, also when they
  come from the environment.
- **Environment**: `MQTTD__TABLE__KEY` overrides a key and wins over the file:
  `MQTTD__MQTT__MAX_PACKET_SIZE=64KiB`, `MQTTD__LISTENER__TCP__DEFAULT__BIND=127.0.0.1:0`,
  `MQTTD__AUTH__CHAIN=username,anonymous`. Text stands bare, numbers, `true`, `false` and tables as
  in TOML. In a listener's name case does not matter and `_` also stands for `-`. A variable that
  starts with `MQTTD__` and names no key is a mistake too.
- **Listeners** have names of your choice in place of `NAME`; without any, one called `default` is
  there.

*Scope* says what a value applies to: the whole broker, each listener, connection or session, or
every message. *Reload* says whether `mqttd-ctl reload` (or SIGHUP) applies a changed value, to
connections and messages that come after it; where it says no, the plan names the key and an alarm
stays until the broker is restarted, or for a key of a listener until
`mqttd-ctl listeners restart KIND:NAME`. A test changes every key of this page in a running broker
and compares it with one that was started so.
"""


#: What the shipped file says that is not the default.
SHIPPED = {"admin.page.enabled": True}


def conf_text() -> str:
    """The text of the shipped configuration file."""
    parts = [_CONF_HEAD]
    for table, struct in TABLES.items():
        header = f"[{table.replace('NAME', 'default')}]"
        if table.startswith("listener.") and table != "listener.tcp.NAME":
            header = f"#{header}"  # the table alone would already open a port
        parts.append(f"\n# {_summary(struct)}\n{header}\n")
        for option in _keys(table):
            lines = textwrap.wrap(f"{option.description}{_range_note(option)}", 97)
            parts.append("\n" + "".join(f"# {line}\n" for line in lines))
            if option.path in SHIPPED:
                parts.append(f"{option.name} = {option.write(SHIPPED[option.path])}\n")
            else:
                parts.append(f"#{option.name} = {option.write(option.default)}\n")
    return "".join(parts)


def page_text() -> str:
    """The text of the reference page."""
    parts = [_PAGE_HEAD, "\n## Tables\n\n"]
    for table, struct in TABLES.items():
        anchor = re.sub("[^a-z0-9_-]", "", table.lower())
        parts.append(f"- [`[{table}]`](#{anchor}): {_summary(struct)}\n")
    for table, struct in TABLES.items():
        parts.append(f"\n## [{table}]\n\n{_summary(struct)}\n")
        for option in _keys(table):
            facts = [
                f"type: {option.type_name}",
                f"default: `{option.write(option.default)}`",
                *([f"range: {_code(option)}"] if option.range else []),
                f"scope: {option.scope}",
                f"reload: {'yes' if option.reload else 'no'}",
            ]
            parts.append(f"\n### `{option.path}`\n\n{option.description}\n\n")
            parts.append("".join(f"- {fact}\n" for fact in facts))
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write all files, or with ``--check`` compare them; the exit status."""
    status = 0
    rules = Path(__file__).with_name(ACL.name).read_text("utf-8")
    for path, text in ((CONF, conf_text()), (ACL, rules), (PAGE, page_text())):
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is out of date: run python -m mqttd.config.reference")
            status = 1
    return status


def _keys(table: str) -> list[Option]:
    """The keys of one table, in the order of the schema."""
    return [option for option in OPTIONS.values() if option.table == table]


def _summary(struct: type) -> str:
    """What a table is about: the first line of its struct's docstring."""
    return (struct.__doc__ or "").strip().splitlines()[0]


def _range_note(option: Option) -> str:
    return f" ({option.range})" if option.range else ""


def _code(option: Option) -> str:
    """The range, with choices set as code."""
    if option.choices:
        return ", ".join(f'`"{choice}"`' for choice in option.choices)
    return option.range


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
