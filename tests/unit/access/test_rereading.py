"""What files would change, in words, and of several workers at once."""

from __future__ import annotations

from collections import Counter

from mqttd.access.rereading import FileChange, summed


def users(**connected: int) -> FileChange:
    removed = [f"u{number}" for number in range(7)]
    clients = sum(connected.values())
    return FileChange(
        "users", "users.conf", "", "username", ["new"], removed, [], clients, Counter(connected)
    )


def test_many_names_are_cut_off_and_all_are_counted() -> None:
    assert users(u0=1, u6=2).describe()["text"] == (
        "users: u0 (1 connected), u1, u2, u3, u4 and 2 more removed, new added; 3 connected in all"
    )


def test_the_clients_of_all_workers_are_told() -> None:
    rules = FileChange("rules", "acl.conf", "", "", ["a"], [], ["b", "b"], clients=1)
    first = [rules.describe(), users(u0=1).describe()]
    other = [rules.describe(), users(u0=2, u1=1).describe()]
    assert [file["text"] for file in summed([first, other])] == [
        "rules: 1 added, 2 moved; 2 clients lose a subscription",
        "users: u0 (3 connected), u1 (1 connected), u2, u3, u4 and 2 more removed, new added",
    ]
