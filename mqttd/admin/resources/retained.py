"""Retained messages: found by filter, shown with their payload, forgotten."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get
from mqttd.readmodel.pages import DEFAULT_LIMIT, Limit
from mqttd.readmodel.retained import Forgotten, RetainedMessage, RetainedPage

__all__ = ["Retained"]

Filter = Annotated[str, Meta(description="a topic filter")]


class Which(Struct, forbid_unknown_fields=True):
    """A page of the messages of a filter."""

    filter: Filter = "#"
    limit: Limit = DEFAULT_LIMIT
    cursor: str | None = None


class Forget(Struct, forbid_unknown_fields=True):
    """What to forget."""

    filter: Filter
    dry_run: Annotated[bool, Meta(description="only say which")] = False


class Retained:
    """The retained messages of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/retained", query=Which, answer=RetainedPage)
    def page(self, ask: Ask) -> Any:
        """A page of topics with a message; a filter that begins with a wildcard leaves $ out."""
        which = ask.query
        return self.parts.model.retained.page(which.filter, which.limit, which.cursor)

    @get("/retained/{topic}", answer=RetainedMessage)
    def one(self, ask: Ask) -> RetainedMessage:
        """One retained message with its payload."""
        found = self.parts.model.retained.get(ask.path["topic"])
        if found is None:
            raise ApiError(404, "not_found", f"no retained message for {ask.path['topic']!r}")
        return found

    @delete("/retained", query=Forget, answer=Forgotten)
    def forget(self, ask: Ask) -> Any:
        """Forget the messages of a filter, or with `dry_run` only say how many there are."""

        def told(forgotten: Forgotten) -> Forgotten:
            ask.unchanged = not forgotten.deleted
            ask.changed({"filter": ask.query.filter, **to_builtins(forgotten)})
            return forgotten

        work = self.parts.model.retained.forget(ask.query.filter, ask.query.dry_run)
        return work.addCallback(told)
