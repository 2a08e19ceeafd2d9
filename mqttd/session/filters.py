"""The subscriptions of a session: most have one, some a few, a few very many.

    none    None
    one     the filter itself, and its options
    a few   a tuple of them, while all have the same options
    more    filter -> options        a dict takes 200 bytes before its first entry counts, and with
                                     ten as many again as a tuple

Promise: to add, to find and to remove one costs a look-up, or up to `_FEW` comparisons, whatever
their number. MQTT 5.0, 3.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.session.charged import Charged
from mqttd.session.ground.account import Account, filter_weight

if TYPE_CHECKING:
    from mypy_extensions import u8

__all__ = ["NEW", "OTHER", "SAME", "Filters"]

#: What a subscription that is added is to those that are there.
NEW: Final = 2
OTHER: Final = 1
SAME: Final = 0
#: Filters in a tuple.
_FEW: Final = 16


class Filters(Charged):
    """A session's topic filters, as its client wrote them, with their options."""

    __slots__ = ("_filters", "_options", "identifiers")

    def __init__(self, client_id: str, account: Account, username: str | None) -> None:
        super().__init__(client_id, account, username)
        self._filters: object | None = None
        #: Filter -> Subscription Identifier, where there are some.
        self.identifiers: dict[str, int] | None = None
        #: Of a filter that is alone, or of each of a few.
        self._options: u8 = 0

    @property
    def subscriptions(self) -> dict[str, int] | None:
        """Full filter -> options, None for none. To look at: it may be a copy."""
        filters = self._filters
        if isinstance(filters, str):
            return {filters: self._options}
        if isinstance(filters, tuple):
            return dict.fromkeys(filters, int(self._options))
        if isinstance(filters, dict):
            return filters
        return None

    def subscribed(self) -> int:
        """The number of subscriptions."""
        filters = self._filters
        if isinstance(filters, (dict, tuple)):
            return len(filters)
        return 0 if filters is None else 1

    def options_of(self, full_filter: str) -> int:
        """The options of a subscription, -1 where there is none."""
        filters = self._filters
        if isinstance(filters, str):
            return self._options if filters == full_filter else -1
        if isinstance(filters, tuple):
            return self._options if full_filter in filters else -1
        if isinstance(filters, dict):
            found: int = filters.get(full_filter, -1)
            return found
        return -1

    def identifier_of(self, full_filter: str) -> int:
        """The Subscription Identifier of a subscription, 0 where there is none."""
        identifiers = self.identifiers
        return 0 if identifiers is None else identifiers.get(full_filter, 0)

    def has(self, full_filter: str, options: int, identifier: int) -> bool:
        """Whether this very subscription is there; identifier: 0 for none."""
        if self.options_of(full_filter) != options:
            return False
        return identifier == self.identifier_of(full_filter)

    def own(self, full_filter: str) -> str:
        """The same text as this filter, kept once where it is the only one."""
        filters = self._filters
        return filters if isinstance(filters, str) and filters == full_filter else full_filter

    def _put_filter(self, full_filter: str, options: int, new: bool) -> None:
        filters = self._filters
        if filters is None or (not new and isinstance(filters, str)):
            self._filters = full_filter
            self._options = options
            return
        if not isinstance(filters, dict):
            few = filters if isinstance(filters, tuple) else (filters,)
            if options == self._options:
                if not new:
                    return
                if len(few) < _FEW:
                    self._filters = (*few, full_filter)
                    return
            filters = dict.fromkeys(few, int(self._options))
            self._filters = filters
        filters[full_filter] = options

    def _take_filter(self, full_filter: str) -> None:
        """Take out a filter that is there."""
        filters = self._filters
        if isinstance(filters, dict):
            del filters[full_filter]
            if not filters:
                self._filters = None
        elif isinstance(filters, tuple):
            left = list(filters)
            left.remove(full_filter)
            self._filters = left[0] if len(left) == 1 else tuple(left)
        else:
            self._filters = None

    def _filter_weight(self, full_filter: str) -> int:
        identifiers = self.identifiers
        return filter_weight(full_filter, identifiers is not None and full_filter in identifiers)

    def _put_identifier(self, full_filter: str, identifier: int) -> None:
        """0: it has none."""
        if not identifier:
            self._forget_identifier(full_filter)
        elif self.identifiers is None:
            self.identifiers = {full_filter: identifier}
        else:
            self.identifiers[full_filter] = identifier

    def _forget_identifier(self, full_filter: str) -> None:
        identifiers = self.identifiers
        if identifiers is not None:
            identifiers.pop(full_filter, None)
            if not identifiers:
                self.identifiers = None
