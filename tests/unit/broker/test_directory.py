"""The order of client ids, beside a set that is sorted whenever somebody asks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqttd.broker.sessions.directory import Directory

#: A few, so that each comes and goes often.
IDS = st.sampled_from([f"client-{number}" for number in range(40)])


class Pages(RuleBasedStateMachine):
    """Clients come and leave, while somebody turns pages."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Directory()
        self.ids: set[str] = set()

    @rule(client_id=IDS)
    def come_or_leave(self, client_id: str) -> None:
        if client_id in self.ids:
            self.ids.remove(client_id)
            self.directory.remove(client_id)
        else:
            self.ids.add(client_id)
            self.directory.add(client_id)

    @rule(many=st.integers(200, 600))
    def crowd(self, many: int) -> None:
        """More than may be without a place."""
        for number in range(many):
            name = f"crowd-{number:04}"
            if name not in self.ids:
                self.ids.add(name)
                self.directory.add(name)

    @rule(client_id=st.none() | IDS, count=st.integers(0, 700), inclusive=st.booleans())
    def after(self, client_id: str | None, count: int, inclusive: bool) -> None:
        known = sorted(self.ids)
        if client_id is not None:
            known = [
                name for name in known if name > client_id or (inclusive and name == client_id)
            ]
        assert self.directory.after(client_id, count, inclusive) == known[:count]

    @rule(client_id=st.none() | IDS, count=st.integers(0, 700))
    def before(self, client_id: str | None, count: int) -> None:
        known = sorted(self.ids, reverse=True)
        if client_id is not None:
            known = [name for name in known if name < client_id]
        assert self.directory.before(client_id, count) == known[:count]

    @invariant()
    def as_many(self) -> None:
        assert len(self.directory) == len(self.ids)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, deadline=None)
