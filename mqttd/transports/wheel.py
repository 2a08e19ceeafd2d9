"""Timer wheel: every deadline of every connection in a ring of one-second buckets.

           now
            |          at = now + 3
            v               v
    [ ][ ][ ][ ][ ][ ][ ][ ][T T][ ] ... 512 buckets, then round again
                              bucket = at % slots

A timer waits in the bucket of its second. One whose deadline lies more turns ahead waits in the
same bucket and is passed over once a turn. Keep alive costs nothing per packet: a connection
stores the time of its last packet, and when its timer falls due, schedules it anew if that time
is recent (a delayed call per connection would cost 3 to 4 us for each reset).

Promise: `schedule` and `cancel` are one dict operation, and a cancelled timer is gone at once.
`advance` costs one step per second passed (at most one turn) and per timer in those buckets. A
timer never falls due before its second, and at most one `advance` after it.
"""

from __future__ import annotations

__all__ = ["Timer", "Wheel"]


class Wheel:
    """Timers in buckets of one second.

    slots: buckets in the ring; a deadline within so many seconds is looked at only once.
    now: the present, in whole seconds of the clock that `advance` is called with; it must not
    run backwards (a monotonic clock), but may jump forward.
    """

    __slots__ = ("buckets", "now", "slots", "timers")

    def __init__(self, slots: int = 512, now: int = 0) -> None:
        if slots < 1:
            raise ValueError(f"a wheel needs at least 1 slot, not {slots}")
        self.slots: int = slots
        self.now: int = now
        self.timers: int = 0
        self.buckets: list[dict[Timer, None] | None] = [None] * slots

    def __len__(self) -> int:
        """Return how many timers wait."""
        return self.timers

    def schedule(self, timer: Timer, at: int) -> None:
        """Let `timer` fall due at second `at`; one that waits already is moved.

        A second that has passed means the next `advance`.
        """
        self.cancel(timer)
        slot = (at if at > self.now else self.now + 1) % self.slots
        bucket = self.buckets[slot]
        if bucket is None:
            self.buckets[slot] = {timer: None}
        else:
            bucket[timer] = None
        timer.at = at
        timer.slot = slot
        self.timers += 1

    def cancel(self, timer: Timer) -> None:
        """Forget `timer`; nothing happens to one that does not wait."""
        timer.due = False
        slot = timer.slot
        if slot < 0:
            return
        timer.slot = -1
        self.timers -= 1
        bucket = self.buckets[slot]
        if bucket is not None:
            del bucket[timer]
            if not bucket:
                self.buckets[slot] = None

    def advance(self, now: int) -> list[Timer]:
        """Move on to second `now` and return the timers that fell due, the earliest bucket first.

        They no longer wait. Acting on one may cancel or reschedule another of the same list:
        act on a timer only while its `due` is true.
        """
        due: list[Timer] = []
        seconds = now - self.now
        if seconds <= 0:
            return due
        second = self.now
        self.now = now
        if seconds > self.slots:
            seconds = self.slots
        for _ in range(seconds):
            second += 1
            slot = second % self.slots
            bucket = self.buckets[slot]
            if bucket is None:
                continue
            later: dict[Timer, None] | None = None
            for timer in bucket:
                if timer.at <= now:
                    timer.slot = -1
                    timer.due = True
                    due.append(timer)
                elif later is None:
                    later = {timer: None}
                else:
                    later[timer] = None
            self.buckets[slot] = later
        self.timers -= len(due)
        return due


class Timer:
    """One deadline.

    kind: what falls due, one of its owner's constants.
    target: whom it concerns.
    at: the second it was last scheduled for.
    due: true from the `advance` that returned it until it is cancelled or scheduled again.
    slot: the bucket it waits in, -1 while it does not wait; for the wheel alone.
    """

    __slots__ = ("at", "due", "kind", "slot", "target")

    def __init__(self, kind: int, target: object) -> None:
        self.kind: int = kind
        self.target: object = target
        self.at: int = 0
        self.due: bool = False
        self.slot: int = -1
