"""Alarms, memory, slow subscribers, and who has changed what."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from mqttd.admin.http.audit import AuditEntry
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, delete, get
from mqttd.readmodel.holders import SlowSubscribers
from mqttd.readmodel.pages import DEFAULT_LIMIT, Limit

__all__ = ["Observing"]


class AlarmView(Struct, kw_only=True):
    """One alarm; times in seconds since 1970."""

    name: str
    text: str
    active: bool
    raised_at: float
    cleared_at: float | None
    count: int


class AlarmList(Struct):
    """Alarms that are raised, and the last ones that were."""

    alarms: list[AlarmView]
    past: list[AlarmView]


class Cleared(Struct):
    """The alarm that was cleared."""

    cleared: str


class AuditPage(Struct):
    """Changes, the newest first; with `cursor` those before them are asked for."""

    audit: list[AuditEntry]
    cursor: str | None


class Before(Struct, forbid_unknown_fields=True):
    """A page of changes."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[int, Meta(ge=0)] | None = None


class Observing:
    """What an operator should know."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/alarms", answer=AlarmList)
    def alarms(self, ask: Ask) -> AlarmList:
        """Alarms that are raised, and the last ones that were."""
        alarms = self.parts.broker.alarms
        return AlarmList(
            [AlarmView(**alarm.describe()) for alarm in alarms.active()],  # type: ignore[arg-type]
            [AlarmView(**alarm.describe()) for alarm in alarms.past()],  # type: ignore[arg-type]
        )

    @delete("/alarms/{alarm}", answer=Cleared)
    def clear(self, ask: Ask) -> Cleared:
        """Take an alarm back; it is raised again if its cause is still there."""
        name = ask.path["alarm"]
        if not self.parts.broker.alarms.clear(name):
            raise ApiError(404, "not_found", f"no alarm {name!r} is raised")
        return Cleared(name)

    @get("/memory")
    def memory(self, ask: Ask) -> Any:
        """What is held in memory, by kind, and the sessions and users that hold most."""
        return self.parts.model.holders.memory()

    @get("/slow", answer=SlowSubscribers)
    def slow(self, ask: Ask) -> SlowSubscribers:
        """Subscribers that take less than is sent to them, the longest first."""
        return self.parts.model.holders.slow()

    @get("/audit", role=ADMINISTRATOR, query=Before, answer=AuditPage)
    def audit(self, ask: Ask) -> AuditPage:
        """Who has changed what since the start: the last 1000 changes, the newest first."""
        found, cursor = self.parts.audit.page(ask.query.limit, ask.query.cursor)
        return AuditPage(found, str(cursor) if cursor is not None else None)
