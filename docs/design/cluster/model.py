"""Who has a client id, which node keeps a message while its session moves, and in which order what
its client publishes on its way comes to others, over links that are cut: all that can happen.

    python docs/design/cluster/model.py [--claims N] [--without RULE]

Three models, each searched to its end (breadth first, every state once):

    Ownership   three nodes, two client ids, claims in any order, those of the first by two users,
                a node that is killed, whose lease ends and that is started again with what its
                store has; or nodes that stand still for longer than their leases, and go on
    Cut         a session that moves from a to b while x publishes: messages, routes that x hears of
                when it does, and marks, on streams that keep their order; a or b is killed
    Behind      a client that publishes at a and, with its session, goes to b, for a session at x,
                while the link of a and x is cut and whole again, up to three times

They follow mqttd/cluster/sessions/{owners,moves,arrivals,departures,arrears}.py and
mqttd/mesh/ferry.py, rule by rule. `--without` leaves one rule out; the search then shows how that
goes wrong, step by step. `--patience` lets who waits go on without, as after 30 s.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

RULES = ("check", "anew", "whose", "back", "asks",
         "revision", "marks", "both", "again", "sending", "since",
         "arrears", "answer", "kept", "counted")  # fmt: skip
NODES, CLIENTS = (0, 1, 2), (0, 1)
#: Who claims each of these; the last bit of an epoch says whose claim it was, that of a session
#: whose it is.
USERS = ((0, 1), (0,))
NAMES = "abc"
#: Added to a node whose lease has ended since it has claimed something.
GONE = 3

#: What is done, and the state after it.
Step = tuple[str, Any]


class Owned(NamedTuple):
    """A client id at one node: its session (0: none), the epoch by which the node has it, the node
    it waits for and by which epoch, who has taken it meanwhile and by which."""

    session: int = 0
    epoch: int = 0
    waits: tuple[int, int] | None = None
    passed: tuple[int, int] | None = None


class State(NamedTuple):
    """etcd: owners (node, epoch) and taken keys; the nodes; what is on its way between them."""

    own: tuple[tuple[int, int] | None, ...]
    taken: frozenset[tuple[int, int, int, int]]  # of, client, by, epoch
    at: tuple[tuple[Owned, ...], ...]
    #: 3: it stands still, and its lease has ended; 2: there; 1: killed, with a lease yet; 0: out.
    there: tuple[int, ...]
    sent: frozenset[tuple[int, int, int, int, int]]  # from, to, client, epoch, session
    epoch: int
    sessions: int
    claims: int
    kills: int
    stops: int = 0
    #: Of a client id somebody was given a new session, while there was one.
    empty: str = ""


def _put(items: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*items[:at], value, *items[at + 1 :])


class Ownership:
    """`check`: a session that nobody waits for is kept only where etcd says whose it is.

    `anew`: a node that has read all of etcd again, and sees who has gone, claims what it has anew.
    `whose`: a claim of what is another user's by etcd is refused. Of a node that has stood still,
    `stops` times at most: `back`: it does not wait for what others have back that it had claimed;
    `asks`: it asks again for what it waits for.
    """

    def __init__(
        self,
        claims: int,
        check: bool = True,
        anew: bool = True,
        whose: bool = True,
        back: bool = True,
        asks: bool = True,
        kills: int = 1,
        stops: int = 0,
    ) -> None:
        self.check = check
        self.anew = anew
        self.whose = whose
        self.back = back
        self.asks = asks
        nobody = tuple(tuple(Owned() for _ in CLIENTS) for _ in NODES)
        nothing = frozenset[Any]()
        self.start = State(
            (None, None), nothing, nobody, (2, 2, 2), nothing, 1, 1, claims, kills, stops
        )

    def steps(self, s: State) -> Iterator[Step]:
        """All that may happen next."""
        for n in NODES:
            if s.there[n] == 2:
                for c in CLIENTS:
                    for user in USERS[c]:
                        if s.own[c] is not None and s.there[s.own[c][0]] == 3:
                            continue  # its session waits for its node
                        if s.claims and s.at[n][c].waits is None and self.may(s, n, c, user):
                            what = f"{NAMES[n]} claims {c} for user {user}"
                            yield what, self.claim(s, n, c, user)
                if s.kills:
                    yield f"{NAMES[n]} is killed", self.kill(s, n)
                if s.stops:
                    yield f"{NAMES[n]} stands still", self.stop(s, n)
                if any(each[0] == n and each[2] >= GONE for each in s.taken):
                    yield f"{NAMES[n]} loses its watch and reads all", self.read(s, n)
            elif s.there[n] == 3:
                yield f"{NAMES[n]} goes on", self.goes_on(s, n)
            elif s.there[n] == 1:
                yield f"the lease of {NAMES[n]} ends", self.expire(s, n)
            else:
                yield f"{NAMES[n]} is started", self.restart(s, n)
        for each in s.taken:
            if s.there[each[0]] == 2:
                what = f"{NAMES[each[0]]} hears that {NAMES[each[2] % GONE]} has {each[1]}"
                yield what, self.hears(s, *each)
        for mail in s.sent:
            if s.there[mail[1]] == 2:
                yield f"{NAMES[mail[1]]} is sent {mail[2]}", self.takes(s, *mail)

    def _set(self, s: State, n: int, c: int, **fields: Any) -> State:
        owned = s.at[n][c]._replace(**fields)
        return s._replace(at=_put(s.at, n, _put(s.at[n], c, owned)))

    def may(self, s: State, n: int, c: int, user: int) -> bool:
        """`Registry.is_foreign`, and `Owner.is_other`: what is n's by etcd, and neither there nor
        on its way, is nobody's."""
        own, session = s.own[c], s.at[n][c].session
        if session and session & 1 != user:
            return False
        if not self.whose or own is None or own[1] & 1 == user:
            return True
        on_way = any(each[1] == n and each[2] == c for each in s.sent)
        on_way = on_way or any(each[1] == c and each[2] == n for each in s.taken)
        return own[0] == n and not session and not on_way

    def _next(self, s: State, user: int) -> tuple[State, int]:
        """A new epoch, of a claim of this user's."""
        return s._replace(epoch=s.epoch + 1), s.epoch << 1 | user

    def claim(self, s: State, n: int, c: int, user: int) -> State:
        """`Owners.claim`: what is here costs nothing; else one transaction."""
        s = s._replace(claims=s.claims - 1)
        owned, before = s.at[n][c], s.own[c]
        if owned.session and owned.epoch:
            return self._fresh(s, n, c, owned.epoch)
        if before is not None and before[0] == n and before[1] & 1 == user:
            return self._fresh(s, n, c, before[1])
        s, e = self._next(s, user)
        s = s._replace(own=_put(s.own, c, (n, e)))
        if before is None or before[0] == n or not s.there[before[0]]:
            return self._fresh(s, n, c, e)
        s = s._replace(taken=s.taken | {(before[0], c, n, e)})
        return self._set(s, n, c, waits=(before[0], e), epoch=e)

    def _fresh(self, s: State, n: int, c: int, e: int) -> State:
        """Its client is let in: with the session that is here, or a new one."""
        if s.at[n][c].session:
            return self._set(s, n, c, epoch=e, waits=None)
        if any(at[c].session for at in s.at) or any(m[2] == c and m[4] for m in s.sent):
            s = s._replace(empty=f"{c} is new at {NAMES[n]}, and there is a session of it")
        s = s._replace(sessions=s.sessions + 1)
        return self._set(s, n, c, session=s.sessions << 1 | e & 1, epoch=e, waits=None)

    def _own(self, s: State, n: int, c: int, user: int) -> State:
        """What is here is claimed anew."""
        s, e = self._next(s, user)
        return s._replace(own=_put(s.own, c, (n, e)))

    def hears(self, s: State, n: int, c: int, by: int, e: int) -> State:
        """`Owners.taken`."""
        s = s._replace(taken=s.taken - {(n, c, by, e)})
        owned = s.at[n][c]
        if any(mail[:4] == (n, by, c, e) for mail in s.sent):
            return s  # it asks again, and is sent that
        if owned.waits is not None and owned.waits[1] < e:
            return self._set(s, n, c, passed=(by, e))
        if owned.epoch > e:
            return s if by >= GONE else s._replace(sent=s.sent | {(n, by, c, e, 0)})
        if by >= GONE:
            return self._back(s, n, c, owned.session)
        s = self._set(s, n, c, session=0, epoch=0)
        return s._replace(sent=s.sent | {(n, by, c, e, owned.session)})

    def takes(self, s: State, a: int, n: int, c: int, e: int, session: int) -> State:
        """`Moves._state`, as far as ownership goes."""
        s = s._replace(sent=s.sent - {(a, n, c, e, session)})
        owned = s.at[n][c]
        if not session and any(mail[1:4] == (n, c, e) and mail[4] for mail in s.sent):
            return s  # who had it before is asked (`Coming.before`), and sends it
        if not session and owned.waits is not None and owned.waits[0] != a:
            return s  # it was claimed of another
        if owned.waits is not None and owned.waits[1] == e:
            return self._has(s, n, c, e, session)
        if not session or owned.session:
            return s
        if self.check and s.own[c] != (n, e):
            # `Moves._refuse` where it is on its way to or from here, else who has sent it looks at
            # etcd, and is refused where that is another user's by now.
            has = owned.waits or any((mail[0], mail[2]) == (n, c) and mail[4] for mail in s.sent)
            looks = s.there[a] == 2 and not s.at[a][c].session and not has
            looks = looks and (s.own[c] is None or not (s.own[c][1] ^ session) & 1)
            return self._passes(s, a, c, session) if looks else s
        return self._set(s, n, c, session=session, epoch=e)

    def _has(self, s: State, n: int, c: int, e: int, session: int) -> State:
        passed = s.at[n][c].passed
        s = self._set(s, n, c, waits=None, passed=None, session=session)
        if passed is None:
            return self._fresh(s, n, c, e)
        if passed[0] >= GONE:
            return self._back(s, n, c, session)
        s = self._set(s, n, c, session=0, epoch=0)
        if session and (passed[1] ^ session) & 1:
            return s  # it was nobody's, and another user has it: `Moves._refuse` there
        return s._replace(sent=s.sent | {(n, passed[0], c, passed[1], session)})

    def kill(self, s: State, n: int) -> State:
        """What it had of its own stays in its store, what it waited for does not."""
        at = tuple(each._replace(waits=None, passed=None, epoch=0) for each in s.at[n])
        sent = frozenset(each for each in s.sent if each[0] != n)
        there = _put(s.there, n, 1)
        return s._replace(at=_put(s.at, n, at), there=there, sent=sent, kills=s.kills - 1)

    def expire(self, s: State, n: int) -> State:
        """What it owned is nobody's, who waits for it waits no longer."""
        own = tuple(None if each is not None and each[0] == n else each for each in s.own)
        # Whoever watches hears of it all the same, in its order.
        taken = frozenset(
            each if each[2] != n else (*each[:2], n + GONE, each[3])
            for each in s.taken
            if each[2] != n or s.there[each[0]] == 2
        )
        s = s._replace(own=own, taken=taken, there=_put(s.there, n, 0))
        for mail in s.sent:
            if mail[1] == n:
                s = s._replace(sent=s.sent - {mail})
                if s.there[mail[0]] == 2 and not s.at[mail[0]][mail[2]].session:
                    s = self._back(s, mail[0], mail[2], mail[4])
        for other in NODES:
            for c in CLIENTS:
                waits = s.at[other][c].waits
                if waits is not None and waits[0] == n and s.there[other] == 2:
                    s = self._has(s, other, c, waits[1], 0)
        return s

    def _back(self, s: State, n: int, c: int, session: int) -> State:
        """`Owners._take_back`: who has claimed it is gone."""
        if session and s.own[c] is None:
            s = self._own(s, n, c, session & 1)
            return self._set(s, n, c, session=session, epoch=_epoch(s, c))
        return self._set(s, n, c, session=0, epoch=0)

    def stop(self, s: State, n: int) -> State:
        """It stands still, its lease ends, its home does not: what is its own stays so. What was
        on its way to it who sends it has back, as soon as it is seen that nobody has claimed it
        since (`mqttd.cluster.sessions.back`); what it has sent comes when it goes on."""
        s = s._replace(there=_put(s.there, n, 3), stops=s.stops - 1)
        for mail in s.sent:
            giver, to, c, e, session = mail
            if to == n:
                s = s._replace(sent=s.sent - {mail})
                if session and s.own[c] == (n, e):
                    s = self._own(s, giver, c, session & 1)
                    s = self._set(s, giver, c, session=session, epoch=_epoch(s, c))
                elif session:
                    s = self._passes(s, giver, c, session)
        return s

    def _passes(self, s: State, n: int, c: int, session: int) -> State:
        """To who has claimed it meanwhile; that may be who has it back."""
        own, waits = s.own[c], s.at[n][c].waits
        if own is not None and waits is not None and own == (n, waits[1]):
            return self._has(s, n, c, own[1], session)
        if own is None or own[0] == n:
            return self._back(s, n, c, session)
        return s._replace(sent=s.sent | {(n, own[0], c, own[1], session)})

    def goes_on(self, s: State, n: int) -> State:
        """`Cluster._keep`: it reads all that etcd says; what is here is its own or somebody else's;
        it asks, and is asked."""
        s = s._replace(there=_put(s.there, n, 2))
        for each in sorted(s.taken, key=lambda taken: taken[3]):
            if each[0] == n:
                s = self.hears(s, *each)
        for c in CLIENTS:
            owned, own = s.at[n][c], s.own[c]
            if owned.waits is not None and own is not None:
                if own[0] != n and owned.passed is None and self.back:
                    s = self._set(s, n, c, passed=own)
                if self.asks:
                    asked = (owned.waits[0], c, n, owned.waits[1])
                    s = s._replace(taken=s.taken | {asked})
            for other in NODES:
                waits = s.at[other][c].waits
                if waits is not None and waits[0] == n:
                    s = s._replace(taken=s.taken | {(n, c, other, waits[1])})
        return s

    def read(self, s: State, n: int) -> State:
        """`Cluster._look`: keys that went with the leases of the dead are not seen any more."""
        taken = frozenset(each for each in s.taken if each[0] != n or each[2] < GONE)
        s = s._replace(taken=taken)
        return self.restart(s, n) if self.anew else s

    def restart(self, s: State, n: int) -> State:
        """What its store has is claimed, where nobody has; taken keys are heard of after it."""
        s = s._replace(there=_put(s.there, n, 2))
        for c in CLIENTS:
            waits = s.at[n][c].waits
            if waits is not None:
                if s.own[c] is None:
                    s = self._own(s, n, c, waits[1] & 1)
                elif s.own[c][0] != n:
                    s = self._set(s, n, c, passed=s.own[c])
            elif not s.at[n][c].session:
                s = self._set(s, n, c, epoch=0)
            elif s.own[c] == (n, s.at[n][c].epoch):
                pass
            elif s.own[c] is None:
                s = self._own(s, n, c, s.at[n][c].session & 1)
                s = self._set(s, n, c, epoch=_epoch(s, c))
            elif not any(each[:2] == (n, c) for each in s.taken):
                s = self._set(s, n, c, session=0, epoch=0)
        return s

    def wrong(self, s: State) -> str:
        """What must never be."""
        if self.start.stops:
            if s.empty:
                return s.empty
            for c in CLIENTS:
                waits = [n for n in NODES if s.there[n] == 2 and s.at[n][c].waits is not None]
                on_way = any(mail[2] == c for mail in s.sent) or any(t[1] == c for t in s.taken)
                if waits and not on_way and 3 not in s.there:
                    return f"{NAMES[waits[0]]} waits for {c}, and nobody sends it"
        for c in CLIENTS:
            has = [n for n in NODES if s.there[n] == 2 and s.at[n][c].session]
            by = [s.at[n][c].epoch for n in has]
            if len(set(by)) != len(by):
                return f"{c} is at two nodes by one epoch"
            on_way = any(each[2] == c for each in s.sent) or any(each[1] == c for each in s.taken)
            if len(has) > 1 and not on_way:
                return f"{c} is at {' and '.join(NAMES[n] for n in has)}, and stays there"
            if has and s.own[c] is None and not on_way:
                return f"{c} is at {NAMES[has[0]]}, and nobody's"
            if any(s.at[n][c].epoch and (s.at[n][c].epoch ^ s.at[n][c].session) & 1 for n in has):
                return f"{c} is let in with another user's session"
        if any(session and (e ^ session) & 1 for *_, e, session in s.sent):
            return "a session has ended for another user's claim"
        return ""


def _epoch(s: State, c: int) -> int:
    own = s.own[c]
    return 0 if own is None else own[1]


class Cut(NamedTuple):
    """A session on its way from a to b, and a publisher at x. Streams keep their order."""

    left: int = 3  # still to be published
    knows: bool = False  # x has b's filter in its tables
    told: bool = False  # etcd has it
    a: str = ""  # streams from x: message numbers, and M for a mark, N for one of the next sending
    b: str = ""
    asks: str = ""  # marks that x is asked for and has not given
    asked: bool = False  # b has asked for marks
    sending: tuple[str, str] = ("M", "M")  # which marks count: at a, at b
    base: str = ""  # what a sent with the session
    kept: str = ""  # what a has kept before the mark, and behind it; b behind it
    since: str = ""
    came: str = ""
    ends: tuple[bool, bool] = (False, False)  # the marks are here: at a, at b
    tail: bool = False  # what a has kept is at b
    entered: bool = False  # the session is at b, and takes whatever comes
    kills: int = 1
    away: bool = False  # a is killed, and not back yet
    again: bool = False  # it is, and has sent what it has
    back: bool = False  # b is killed, and the session a's again


class Moving:
    """`revision`: x waits until it knows b's filter; `marks`: who keeps what is told by marks;
    `both`: b goes on when the marks have come to it, too, not only to a. Where a is killed before
    TAIL: `again`: b begins anew with what a has when it is back; `sending`: marks that were asked
    for before do not count then. `since`: a keeps what is behind the marks, too, for a b that is
    killed."""

    def __init__(
        self,
        revision: bool = True,
        marks: bool = True,
        both: bool = True,
        again: bool = True,
        sending: bool = True,
        since: bool = True,
    ) -> None:
        self.revision = revision
        self.marks = marks
        self.both = both
        self.again = again
        self.sending = sending
        self.since = since
        self.start = Cut()

    def steps(self, s: Cut) -> Iterator[Step]:
        """All that may happen next."""
        if s.left:
            sent = str(s.left)
            b = s.b + sent if s.knows and not s.back else s.b
            yield f"x publishes {sent}", s._replace(left=s.left - 1, a=s.a + sent, b=b)
        if not s.told:
            yield "etcd has the filter of b", s._replace(told=True)
        if s.told and not s.knows:
            yield "x hears of it", s._replace(knows=True)
        if s.told and not s.asked and not s.back:
            yield "b asks for marks", s._replace(asked=True, asks=s.asks + s.sending[1])
        if s.asks and (s.knows or not self.revision):
            mark = s.asks[0]
            a = s.a if s.away else s.a + mark
            yield "x gives its marks", s._replace(asks=s.asks[1:], a=a, b=s.b + mark)
        if s.a and not s.away:
            yield f"a takes {s.a[0]}", self._take_a(s._replace(a=s.a[1:]), s.a[0])
        if s.b:
            yield f"b takes {s.b[0]}", self._take_b(s._replace(b=s.b[1:]), s.b[0])
        if s.ends[0] and not s.tail:
            yield "a sends what it has kept", s._replace(tail=True)
        if s.tail and not s.entered and (s.ends[1] or not self.both):
            yield "the session is at b", s._replace(entered=True)
        if s.kills and not s.tail and not s.back:
            yield "a is killed", self._kill_a(s)
            yield "b is killed", self._kill_b(s)
        if s.away:
            mark = "N" if self.sending else "M"
            yield "a is back", s._replace(away=False, sending=(mark, "M"), again=True)
        if s.again:
            yield "b is sent what a has", self._again(s)

    def _kill_a(self, s: Cut) -> Cut:
        """`Arrivals.left`, `Moves.left`: its store has all that it has taken."""
        s = s._replace(kills=0, a=s.a.replace("M", ""), ends=(False, s.ends[1]))
        if not self.again:
            return s._replace(a="", tail=True, ends=(True, True))
        return s._replace(away=True, base=s.base + s.kept + s.since, kept="", since="")

    def _again(self, s: Cut) -> Cut:
        """`Arrivals.state`: in place of all that had come."""
        return s._replace(again=False, asked=False, came="", ends=(s.ends[0], False),
                          sending=(s.sending[0], s.sending[0]))  # fmt: skip

    def _kill_b(self, s: Cut) -> Cut:
        """`Departures.left`: before it was sent all."""
        return s._replace(kills=0, back=True, sending=("", ""), b="", came="", since="",
                          kept=s.kept + s.since, ends=(False, False))  # fmt: skip

    def _take_a(self, s: Cut, what: str) -> Cut:
        if what in "MN":
            return s._replace(ends=(True, s.ends[1])) if what == s.sending[0] else s
        if not s.ends[0]:
            return s._replace(kept=s.kept + what)
        return s._replace(since=s.since + what) if self.since else s

    def _take_b(self, s: Cut, what: str) -> Cut:
        if what in "MN":
            return s._replace(ends=(s.ends[0], True)) if what == s.sending[1] else s
        keeps = s.ends[1] or s.entered or not self.marks
        return s._replace(came=s.came + what) if keeps else s

    def wrong(self, s: Cut) -> str:
        """What must never be, when all is over."""
        if s.left or s.a or s.b or s.asks or s.away or s.again or not (s.entered or s.back):
            return ""
        has = s.base + s.kept + s.came
        return "" if has == "321" else f"of 3, 2, 1 the session has {has or 'nothing'}"


class Behind(NamedTuple):
    """A client that publishes for a session at x: at a, and, when its session has come there, at b.
    The stream from a to x breaks when their link is cut; what of b reaches x in its order."""

    left: int = 3  # still to be published, one after the other: each when the one before is acked
    at: str = "a"  # where its client is; empty: nowhere, its session is on its way
    up: bool = True  # the link of a and x
    cuts: int = 3
    acked: int = 4  # the last one that its client was acknowledged
    kept: str = ""  # what a has for x, and has not heard that x has
    sent: str = ""  # under way to x, of a and of b
    of_b: str = ""
    has: str = ""  # at x, in its order
    says: str = ""  # answers of x under way to a: how much it has taken
    old: str = ""  # what was kept when the link began, and is waited for
    mark: str = ""  # the mark of x: W to be given, S given and under way to a, H here


class Link:
    """`arrears`: a sends TAIL when x has what was kept for it; `answer`: that it has, x says; that
    all of it was sent is not enough; `kept`: what x has not said that it has is sent again when the
    link is whole; `counted`: x says then how much it has. `patience`: who waits goes on without, at
    any time."""

    def __init__(
        self,
        arrears: bool = True,
        answer: bool = True,
        kept: bool = True,
        counted: bool = True,
        patience: bool = False,
    ) -> None:
        self.arrears = arrears
        self.answer = answer
        self.kept = kept
        self.counted = counted
        self.patience = patience
        self.start = Behind()

    def steps(self, s: Behind) -> Iterator[Step]:
        """All that may happen next."""
        if s.left and s.at and s.acked == s.left + 1:
            yield f"the client publishes {s.left} at {s.at}", self._publish(s)
        if s.up and s.cuts:
            yield "the link of a and x is cut", self._cut(s)
        if not s.up:
            yield "it is whole", self._whole(s)
        if s.sent:
            has = s.has if s.sent[0] in s.has and self.counted else s.has + s.sent[0]
            yield (
                f"x takes {s.sent[0]} of a",
                s._replace(sent=s.sent[1:], has=has, says=s.says + s.sent[0]),
            )
        if s.of_b:
            yield f"x takes {s.of_b[0]} of b", self._take_b(s)
        if s.says:
            yield f"a hears that x has {s.says[0]}", self._hears(s)
        if s.at == "a" and s.left < 3:
            # What its client was not acknowledged it publishes again.
            yield "b claims the session", s._replace(at="", left=s.acked - 1, mark="W")
        if s.mark == "W" and s.up:
            yield "x gives its mark", s._replace(mark="S")
        if s.mark == "S":
            yield "a has it", s._replace(mark="H")
        if not s.at and (self.patience or self._may_go(s)):
            yield "TAIL: the session is at b", s._replace(at="b")

    def _may_go(self, s: Behind) -> bool:
        """`Departures._look`, `Arrears.any`."""
        if s.mark != "H":
            return False
        waits = bool(s.old) and self.answer
        return not self.arrears or not (waits or (not s.up and s.kept))

    def _publish(self, s: Behind) -> Behind:
        what = str(s.left)
        s = s._replace(left=s.left - 1)
        if s.at == "b":
            return s._replace(of_b=s.of_b + what)
        if s.up:
            return s._replace(kept=s.kept + what, sent=s.sent + what)
        return s._replace(kept=s.kept + what, acked=int(what))

    def _cut(self, s: Behind) -> Behind:
        """What was under way is lost; what is kept counts as acknowledged, and its mark is kept."""
        acked = min(s.acked, *map(int, s.kept)) if s.kept and s.at == "a" else s.acked
        mark = "W" if s.mark == "S" else s.mark
        return s._replace(up=False, cuts=s.cuts - 1, sent="", says="", acked=acked, old="",
                          mark=mark)  # fmt: skip

    def _whole(self, s: Behind) -> Behind:
        """`NodeMesh.linked`, `Arrears.linked`: x says what it has, all else goes."""
        kept = "".join(each for each in s.kept if each not in s.has or not self.counted)
        return s._replace(up=True, kept=kept, old=kept, sent=kept if self.kept else "")

    def _take_b(self, s: Behind) -> Behind:
        what = s.of_b[0]
        return s._replace(of_b=s.of_b[1:], has=s.has + what, acked=min(s.acked, int(what)))

    def _hears(self, s: Behind) -> Behind:
        what = s.says[0]
        acked = min(s.acked, int(what)) if s.at == "a" else s.acked
        return s._replace(says=s.says[1:], kept=s.kept.replace(what, ""),
                          old=s.old.replace(what, ""), acked=acked)  # fmt: skip

    def wrong(self, s: Behind) -> str:
        """What must never be. What was not acknowledged may come twice."""
        first = "".join(dict.fromkeys(s.has))
        if first != "".join(sorted(first, reverse=True)):
            return f"of 3, 2, 1 x has {', '.join(s.has)}"
        if any(s.has.count(each) > 1 and s.at == "a" for each in s.has):
            return f"x has {', '.join(s.has)}, and its publisher has sent each once"
        over = not (s.left or s.sent or s.of_b or s.says) and s.up and s.at and not s.cuts
        if over and (missed := [each for each in "321" if each not in s.has]):
            return f"x has not {', '.join(missed)}"
        return ""


def search(model: Any, progress: Callable[[int], object] = lambda _: None) -> tuple[int, list[str]]:
    """How many states there are; or the shortest way to a wrong one."""
    seen: dict[Any, tuple[Any, str]] = {model.start: (None, "")}
    todo = deque([model.start])
    while todo:
        state = todo.popleft()
        wrong = model.wrong(state)
        if wrong:
            way = [wrong]
            while state is not None:
                state, what = seen[state]
                way.append(what)
            return len(seen), [each for each in reversed(way) if each]
        for what, after in model.steps(state):
            if after not in seen:
                seen[after] = (state, what)
                todo.append(after)
        if len(seen) % 100_000 < 5:
            progress(len(seen))
    return len(seen), []


def main() -> int:
    """The command; its status is 1 if something can go wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--claims", type=int, default=4)
    parser.add_argument("--without", choices=RULES, default="")
    parser.add_argument("--patience", action="store_true")
    asked = parser.parse_args()
    rules = [asked.without != each for each in RULES[:5]]
    ownership = Ownership(asked.claims, *rules)
    # With a fourth claim one that another has overtaken may be let in with a new session, until it
    # hears of that: the session itself stays where it is.
    still = Ownership(min(asked.claims, 3), *rules, kills=0, stops=2)
    moving = Moving(*(asked.without != each for each in RULES[5:11]))
    link = Link(*(asked.without != each for each in RULES[11:]), patience=asked.patience)
    models = {"cut": moving, "behind": link, "ownership": ownership, "still": still}
    bad = 0
    for name, model in models.items():
        count, way = search(model)
        print(f"{name}: {count} states, {'wrong:' if way else 'nothing wrong'}")
        for each in way:
            print(f"    {each}")
        bad |= bool(way)
    return bad


if __name__ == "__main__":
    sys.exit(main())
