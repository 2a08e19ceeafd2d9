"""Placeholders in queries, keys, names and URLs: values, never text.

    ${username} %u   ${clientid} %c   ${peerhost} %a   ${cert_common_name}

    SELECT hash FROM users WHERE name = ${username}
      --Query--> "SELECT hash FROM users WHERE name = %s", ("o'neil",)

    uid=${username},ou=people --Template.fill(values, escape_rdn)--> uid=o'neil,ou=people

Promise: a template is taken apart once, when it is loaded, and never again: what a client calls
itself is put between its parts, escaped by the caller's rule, and is not looked at for
placeholders, quotes or operators. A placeholder within quotes or a comment of SQL, where it would
be text, or behind LIKE or ~, where it would be a pattern, is refused when the plugin is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mqttd.types import ClientInfo

__all__ = ["Query", "Template", "values_of"]

Values = Mapping[str, str]

_NAMES: Final = {
    "${username}": "username",
    "%u": "username",
    "${clientid}": "clientid",
    "%c": "clientid",
    "${peerhost}": "peerhost",
    "%a": "peerhost",
    "${cert_common_name}": "cert_common_name",
}
_MARK: Final = re.compile(r"\$\{[^}]*\}?|%[uca]")
_LONG: Final = re.compile(r"\$\{[^}]*\}?")
#: What a pattern comes behind.
_PATTERN: Final = re.compile(
    r"(?:\b(?:[ir]?like|regexp|similar\s+to|glob|binary)|~~?\*?)\s*\(*\s*$", re.IGNORECASE
)
#: Where a placeholder would be text: quotes, quoted names, comments.
_QUOTED: Final = re.compile(
    r"'(?:[^'\\]|''|\\.)*'?|\"(?:[^\"\\]|\"\"|\\.)*\"?|`[^`]*`?|--[^\n]*|\#[^\n]*|/\*.*?(?:\*/|$)"
    r"|\$(?P<tag>[A-Za-z_][A-Za-z0-9_]*|)\$.*?(?:\$(?P=tag)\$|$)",
    re.DOTALL,
)


def values_of(client: ClientInfo) -> dict[str, str]:
    """What the placeholders stand for; those that the client has no value for are not there."""
    found = {
        "username": client.username,
        "clientid": client.client_id,
        "peerhost": client.peerhost,
        "cert_common_name": client.cert_common_name,
    }
    return {name: value for name, value in found.items() if value is not None}


class Template:
    """A text with placeholders; ``what`` names it in errors, ``more`` are further placeholders.

    Without `short` ``%u`` and its like are text, as ``%c3`` is in a URL. Raises ValueError for a
    placeholder that there is not.
    """

    def __init__(
        self, text: str, what: str, more: Mapping[str, str] | None = None, short: bool = True
    ) -> None:
        self.text = text
        known = {**_NAMES, **(more or {})}
        #: Literal text at even places, names of values at odd ones.
        self.parts: list[str] = []
        end = 0
        for mark in (_MARK if short else _LONG).finditer(text):
            if mark[0] not in known:
                shown = ", ".join(name for name in known if name[0] == "$")
                raise ValueError(f"{what}: found {mark[0]}, expected one of {shown}")
            self.parts += [text[end : mark.start()], known[mark[0]]]
            end = mark.end()
        self.parts.append(text[end:])
        self.names = frozenset(self.parts[1::2])

    def fill(self, values: Values, escape: Callable[[str], str] = str) -> str:
        """The text with the values put in, each through `escape`; KeyError if one is not there."""
        return "".join(escape(values[part]) if i % 2 else part for i, part in enumerate(self.parts))

    def is_ambiguous(self, values: Values) -> bool:
        """Whether other values could give the same text: ``a:b`` + ``c`` or ``a`` + ``b:c``."""
        between = set("".join(self.parts[2:-1:2]))
        if "" in self.parts[2:-1:2]:
            return True
        return any(not between.isdisjoint(values[name]) for name in self.names)


class Query:
    """A query of SQL with its parameters as ``%s``, in the order of `names`.

    ``'%u'``, in quotes of its own as older systems want it, is a parameter too. Raises ValueError
    for a placeholder within other quotes or a comment.
    """

    def __init__(self, text: str, what: str) -> None:
        parts: list[str] = []
        order: list[str] = []
        for quoted, part in _pieces(text):
            if quoted and part.startswith("'") and _MARK.fullmatch(part[1:-1]):
                part, quoted = part[1:-1], False
            template = None if quoted and not _MARK.search(part) else Template(part, what)
            if template is None:
                parts.append(part.replace("%", "%%"))
                continue
            if quoted and template.names:
                raise ValueError(
                    f"{what}: a placeholder within {part[:40]}: expected it bare, as a value"
                )
            before = "".join(parts)
            for text_before in template.parts[:-1:2]:
                if _PATTERN.search(before + text_before):
                    raise ValueError(f"{what}: a placeholder as a pattern, behind LIKE or ~")
                before = ""
            order += template.parts[1::2]
            parts.append("%s".join(each.replace("%", "%%") for each in template.parts[::2]))
        self.text = "".join(parts)
        self.order = tuple(order)
        self.names = frozenset(order)

    def parameters(self, values: Values) -> tuple[str, ...]:
        """The values in the order of the ``%s``."""
        return tuple(values[name] for name in self.order)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces, and which of them are quoted."""
    end = 0
    for quoted in _QUOTED.finditer(text):
        if end < quoted.start():
            yield False, text[end : quoted.start()]
        yield True, quoted[0]
        end = quoted.end()
    if end < len(text):
        yield False, text[end:]
