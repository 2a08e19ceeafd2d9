"""The handle's hold on publishers: what they send is kept, acknowledgements wait, or they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttd.broker.hooks.holders import Hold
from mqttd.plugins.calls.filters import Patterns, valid_topic_filters
from mqttd.plugins.handle.base import HandleBase
from mqttd.session.gathering import Gathering
from mqttd.session.promise import Promise

__all__ = ["Promises"]


class Promises(HandleBase):
    """What keeps messages; and what keeps an acknowledgement, or all publishers, back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What the broker gave for `hold_acknowledgements`.
        self._holder: object = None
        #: The topics whose messages it holds; None for all.
        self._held: list[str] | None = None
        self._pauses = False
        #: What the broker gave for `keep_messages`.
        self._keeping: object = None
        #: And for `keep_deliveries`.
        self._following: object = None
        #: And for `keep_denials`.
        self._denials: object = None
        self._at_end(self._let_go)

    def hold_acknowledgements(
        self,
        hold: Callable[[Callable[[], None], str], object] | None,
        topic_filter: Patterns = None,
        required: bool = False,
        brought: Callable[[], object] | None = None,
    ) -> Any:
        """See `IPluginHandle.hold_acknowledgements`."""
        self._check()
        topic_filters = list(valid_topic_filters(topic_filter)) or None
        self._release_holder()
        if hold is None:
            return None
        guarded = self._guarded(hold, required)
        required = required or self.budget.policy == "deny"
        gathering = None if brought is None else self._gathering(brought, required)
        add = self._host.broker.add_holder
        self._holder = add(guarded, topic_filters, required, gathering)
        self._held = topic_filters
        return gathering

    def keep_messages(self, notes: Any, topic_filter: Patterns = None) -> None:
        """See `IPluginHandle.keep_messages`."""
        self._check()
        topic_filters = list(valid_topic_filters(topic_filter)) or None
        self._stop_keeping()
        if notes is not None:
            self._keeping = self._host.broker.add_notes(notes, topic_filters)

    def keep_deliveries(
        self,
        notes: Any,
        delivered: bool = True,
        acked: bool = True,
        topic_filter: Patterns = None,
        dropped: bool = False,
        unheard: bool = False,
    ) -> None:
        """See `IPluginHandle.keep_deliveries`."""
        self._check()
        topic_filters = list(valid_topic_filters(topic_filter)) or None
        self._stop_following()
        if notes is not None:
            self._following = self._host.broker.add_deliveries(
                notes, delivered, acked, topic_filters, dropped, unheard
            )

    def keep_denials(self, notes: Any) -> None:
        """See `IPluginHandle.keep_denials`."""
        self._check()
        self._stop_denials()
        if notes is not None:
            self._denials = self._host.broker.add_denials(notes)

    def pause_publishers(self, paused: bool) -> None:
        """See `IPluginHandle.pause_publishers`."""
        self._check()
        self._pauses = paused
        self._host.broker.set_congested(paused, f"plugin {self.budget.name}")

    def _guarded(self, hold: Hold, required: bool) -> Hold:
        """`hold` on the plugin's budget: one that fails holds nothing, or ends the client."""

        def ask(release: Callable[[], None], client_id: str) -> bool:
            hold(release, client_id)
            return True

        def guarded(release: Callable[[], None], client_id: str) -> None:
            if self._guard("hold_acknowledgements", ask, (release, client_id)) is None:
                if required or self.budget.policy == "deny":
                    raise PermissionError(f"plugin {self.budget.name} could not be asked to keep")
                release()

        return guarded

    def _gathering(self, brought: Callable[[], object], required: bool) -> Gathering:
        """`brought` on the plugin's budget, as `_guarded` has `hold` there."""

        def ask() -> bool:
            brought()
            return True

        def guarded() -> bool:
            return self._guard("hold_acknowledgements", ask, ()) is not None

        def refused(promises: list[Promise]) -> None:
            error = PermissionError(f"plugin {self.budget.name} could not be asked to keep")
            for promise in promises:
                if required or self.budget.policy == "deny":
                    promise.queue.refuse(error)
                else:
                    promise.keep(gathering.holder)

        gathering = Gathering(self._host.broker, guarded, refused)
        return gathering

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        held: list[str] = []
        if self._holder is not None:
            held = ["#"] if self._held is None else self._held
        return {"acknowledgements": held, **super().describe()}

    def _release_holder(self, gone: bool = False) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            self._host.broker.remove_holder(holder, gone)

    def _stop_keeping(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            self._host.broker.remove_notes(keeping)

    def _stop_following(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            self._host.broker.remove_deliveries(following)

    def _stop_denials(self) -> None:
        denials, self._denials = self._denials, None
        if denials is not None:
            self._host.broker.remove_denials(denials)

    def _let_go(self) -> None:
        self._stop_keeping()
        self._stop_following()
        self._stop_denials()
        self._release_holder(gone=True)
        if self._pauses:
            self._host.broker.set_congested(False, f"plugin {self.budget.name}")
