"""What files of users and rules hold, beside what is in force: for the plan of a reload.

    AccessControl in force ──┐
                             ├─> changes_of ─> FileChange(kind, path, added, removed, changed)
    the one of the files ────┘

Promise: nothing is read and nothing is changed here; no secret is told, names alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from mqttd.access.chain import AccessControl

__all__ = ["FileChange", "changes_of", "summed"]

#: Lists of names that do not hold any more.
_GONE: Final = ("removed", "changed")
#: Names or rules that a change lists; all are counted.
LISTED: Final = 50
#: Names that a line has.
_NAMED: Final = 5
#: What the names in a module's file are.
_LABELS: Final = {"username": "users", "clientid": "client ids", "scram": "SCRAM users"}


@dataclass(slots=True)
class FileChange:
    """What differs between one file and what is in force of it.

    ``clients`` is for the caller to count: of rules those that lose a subscription, of users those
    that are connected with what is gone or has another proof (by name, in ``connected``).
    """

    #: ``rules``, or whose names they are: users, client ids, SCRAM users.
    kind: str
    path: str
    #: ``KIND:NAME`` of a listener with a chain or rules of its own, else "".
    listener: str
    #: The authentication module, "" of rules.
    module: str
    added: list[str]
    removed: list[str]
    #: Names with another proof; rules that have moved past others.
    changed: list[str]
    clients: int = 0
    connected: Counter[str] = field(default_factory=Counter)
    #: Names that who is connected came in by, and which do not hold any more.
    gone: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.gone = frozenset((*self.removed, *self.changed))

    def describe(self) -> dict[str, Any]:
        """The change as the API shows it."""
        told: dict[str, Any] = {
            "kind": self.kind,
            "path": self.path,
            "listener": self.listener,
            "counts": {
                "added": len(self.added),
                "removed": len(self.removed),
                "changed": len(self.changed),
            },
            "added": self.added[:LISTED],
            "removed": self.removed[:LISTED],
            "changed": self.changed[:LISTED],
            "connected": dict(self.connected.most_common(LISTED)),
            "clients": self.clients,
        }
        told["text"] = _text(told)
        return told


def _text(told: dict[str, Any]) -> str:
    """A change that `FileChange.describe` has made, in words."""
    of = f" of {told['listener']}" if told["listener"] else ""
    words = _of_rules(told) if told["kind"] == "rules" else _of_names(told)
    return f"{told['kind']}{of}: {words}"


def summed(told: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each of several workers says of the same files, with the clients of all."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in (file for each in told for file in each):
        first = found.setdefault((file["listener"], file["kind"]), file)
        if first is file:
            continue
        first["clients"] += file["clients"]
        first["connected"] = dict(Counter(first["connected"]) + Counter(file["connected"]))
        first["text"] = _text(first)
    return list(found.values())


def _of_rules(told: dict[str, Any]) -> str:
    counts = told["counts"]
    parts = [
        f"{counts[key]} {word}"
        for key, word in (("added", "added"), ("removed", "removed"), ("changed", "moved"))
        if counts[key]
    ]
    clients = told["clients"]
    lost = f"; {clients} client{'s lose' if clients > 1 else ' loses'} a subscription"
    return ", ".join(parts) + (lost if clients else "")


def _of_names(told: dict[str, Any]) -> str:
    parts = []
    for key, word in (("removed", "removed"), ("changed", "changed"), ("added", "added")):
        names = [
            f"{name} ({told['connected'][name]} connected)" if told["connected"].get(name) else name
            for name in told[key][:_NAMED]
        ]
        if names:
            more = told["counts"][key] - len(names)
            parts.append(f"{', '.join(names)}{f' and {more} more' if more else ''} {word}")
    shown = sum(told["connected"].get(name, 0) for key in _GONE for name in told[key][:_NAMED])
    in_all = f"; {told['clients']} connected in all" if told["clients"] > shown else ""
    return ", ".join(parts) + in_all


def changes_of(before: AccessControl, after: AccessControl, listener: str = "") -> list[FileChange]:
    """What would change if `after` came into the place of `before`: rules, then users."""
    found = []
    old, new = before.authorization.rules().rules, after.authorization.rules().rules
    count = Counter(rule.text for rule in new)
    count.subtract(rule.text for rule in old)
    added = [text for text, more in count.items() for _ in range(more)]
    removed = [text for text, more in count.items() for _ in range(-more)]
    moved = _moved([r.text for r in old if not count[r.text]], [r.text for r in new])
    if added or removed or moved:
        path = after.config.acl.file
        found.append(FileChange("rules", path, listener, "", added, removed, moved))
    had = before.authentication.files()
    for module, (path, names) in after.authentication.files().items():
        if module not in had or had[module][1] == names:
            continue
        was = had[module][1]
        found.append(
            FileChange(
                _LABELS.get(module, module), path, listener, module,
                sorted(names.keys() - was.keys()), sorted(was.keys() - names.keys()),
                sorted(name for name, proof in was.items() if names.get(name, proof) != proof),
            )
        )  # fmt: skip
    return found


def _moved(old: list[str], new: list[str]) -> list[str]:
    """Of rules that are in both, those that stand at another place among them."""
    both = Counter(old)
    kept = [text for text in new if text in both]
    return [b for a, b in zip(old, kept, strict=False) if a != b]
