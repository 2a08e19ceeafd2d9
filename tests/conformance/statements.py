"""The checklist: every normative statement the broker is held to, as data.

Row numbers and wording are those of the project's checklist; the identifiers are the ones of the
two OASIS standards (MQTT 3.1.1 with errata 01, and MQTT 5.0). A row without identifiers for a
version makes no numbered demand there. Each sentence continues "The broker ...".
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHAPTERS", "STATEMENTS", "Statement"]


@dataclass(frozen=True)
class Statement:
    """One row of the checklist: its number, chapter, identifiers by version, and wording."""

    number: int
    chapter: int
    v311: tuple[str, ...]
    v5: tuple[str, ...]
    text: str

    @property
    def versions(self) -> tuple[int, ...]:
        """The protocol levels (4 for 3.1.1, 5 for 5.0) in which the row has an identifier."""
        return (4,) * bool(self.v311) + (5,) * bool(self.v5)


CHAPTERS: dict[int, str] = {
    1: "Encoding and fixed header",
    2: "CONNECT and CONNACK",
    3: "Sessions",
    4: "Will",
    5: "PUBLISH, QoS and retained messages",
    6: "SUBSCRIBE, UNSUBSCRIBE and topics",
    7: "PINGREQ and DISCONNECT",
    8: "WebSocket and transports",
}

_ROWS: tuple[tuple[int, int, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        1,
        1,
        ("1.5.3-1",),
        ("1.5.4-1",),
        "closes on any string (topic, filter, client id, user name, will topic) that is "
        "not well-formed UTF-8, surrogates D800–DFFF included",
    ),
    (
        2,
        1,
        ("1.5.3-2",),
        ("1.5.4-2",),
        "closes on a string with U+0000",
    ),
    (
        3,
        1,
        ("1.5.3-3",),
        (),
        "keeps a leading EF BB BF: a topic with it is another topic",
    ),
    (
        4,
        1,
        (),
        ("1.5.5-1",),
        "treats an over-long variable byte integer as malformed; a fifth continuation "
        "byte in the remaining length closes in both versions",
    ),
    (
        5,
        1,
        ("2.2.2-1", "2.2.2-2"),
        ("2.1.3-1",),
        "closes on every packet type whose reserved flag bits are wrong (go through all "
        "16 types × 16 flag values)",
    ),
    (
        6,
        1,
        ("2.3.1-1",),
        ("2.2.1-3",),
        "closes on SUBSCRIBE, UNSUBSCRIBE and QoS > 0 PUBLISH with packet id 0",
    ),
    (
        7,
        1,
        ("2.3.1-5",),
        ("2.2.1-2",),
        "sends and expects no packet id in a QoS 0 PUBLISH",
    ),
    (
        8,
        1,
        ("2.3.1-4",),
        ("2.2.1-4",),
        "never uses a packet id for a new PUBLISH that is still in flight for that "
        "client; wraps 65535 → 1",
    ),
    (
        9,
        1,
        ("2.3.1-6", "2.3.1-7"),
        ("2.2.1-5", "2.2.1-6"),
        "answers with the id of the packet it answers, whatever ids the client picks, "
        "also out of order",
    ),
    (
        10,
        1,
        ("4.8.0-1",),
        ("4.13.1-1",),
        "on any malformed packet or protocol violation closes this connection only: a "
        "second client on the same broker goes on undisturbed",
    ),
    (
        11,
        1,
        (),
        ("2.2.2-1",),
        "writes a property length of zero where there are no properties; closes on an "
        "unknown property, on one in the wrong packet type, and on a second copy of a "
        "single one",
    ),
    (
        12,
        2,
        ("3.1.0-1",),
        ("3.1.0-1",),
        "closes when the first packet is any of the other fourteen types, and does "
        "nothing of what that packet asks",
    ),
    (
        13,
        2,
        ("3.1.0-2",),
        ("3.1.0-2",),
        "closes on a second CONNECT",
    ),
    (
        14,
        2,
        ("3.1.2-1",),
        ("3.1.2-1",),
        "accepts the protocol name MQTT (and MQIsdp with level 3, if offered) and closes "
        "on another",
    ),
    (
        15,
        2,
        ("3.1.2-2",),
        ("3.1.2-2",),
        "answers an unknown protocol level with CONNACK 0x01 (old form) or 0x84 (5.0 "
        "form), then closes",
    ),
    (
        16,
        2,
        ("3.1.2-3",),
        ("3.1.2-3",),
        "closes when the reserved connect flag is 1",
    ),
    (
        17,
        2,
        ("3.1.2-13", "3.1.2-14", "3.1.2-15"),
        ("3.1.2-11", "3.1.2-12", "3.1.2-13"),
        "closes on will QoS 3, and on will QoS or will retain without the will flag",
    ),
    (
        18,
        2,
        ("3.1.2-18", "3.1.2-19", "3.1.2-20", "3.1.2-21"),
        ("3.1.2-16", "3.1.2-17", "3.1.2-18", "3.1.2-19"),
        "closes when user name or password is present without its flag, or missing with "
        "it, or bytes are left over",
    ),
    (
        19,
        2,
        ("3.1.2-22",),
        (),
        "3.1.1: closes on a password flag without the user name flag (5.0 allows it)",
    ),
    (
        20,
        2,
        ("3.1.3-5",),
        ("3.1.3-5",),
        "accepts client ids of 1 to 23 letters and digits (and documents what it does beyond)",
    ),
    (
        21,
        2,
        ("3.1.3-6",),
        ("3.1.3-6", "3.1.3-7"),
        "gives a client with an empty id a unique one; 5.0: tells it in Assigned Client "
        "Identifier, and that id works for a later CONNECT",
    ),
    (
        22,
        2,
        ("3.1.3-8",),
        (),
        "3.1.1: answers an empty id with clean session 0 by CONNACK 0x02 and closes",
    ),
    (
        23,
        2,
        ("3.1.4-1",),
        ("3.1.4-1",),
        "closes on every malformed CONNECT (cut anywhere, each length field too long by "
        "one) with no session left behind",
    ),
    (
        24,
        2,
        ("3.1.4-2",),
        ("3.1.4-3",),
        "ends the older connection when the same client id connects again (5.0: "
        "DISCONNECT 0x8E first) and publishes its will if it must",
    ),
    (
        25,
        2,
        ("3.1.4-5",),
        ("3.1.4-6",),
        "after a refused CONNECT ignores what was already sent behind it (CONNECT + "
        "PUBLISH in one segment with a wrong password: nothing is published)",
    ),
    (
        26,
        2,
        ("3.2.0-1",),
        ("3.2.0-1", "3.2.0-2"),
        "sends exactly one CONNACK, and nothing before it, also when CONNECT, SUBSCRIBE "
        "and PUBLISH came in one segment",
    ),
    (
        27,
        2,
        ("3.2.2-1", "3.2.2-2", "3.2.2-3"),
        ("3.2.2-2", "3.2.2-3"),
        "sets Session Present exactly when it resumes stored state",
    ),
    (
        28,
        2,
        ("3.2.2-4", "3.2.2-5"),
        ("3.2.2-6", "3.2.2-7"),
        "on a refusal has Session Present 0 and then closes",
    ),
    (
        29,
        2,
        ("3.1.2-24",),
        ("3.1.2-22",),
        "closes a silent client within 1.5 × keep alive (not earlier), publishes its "
        "will; keep alive 0 never times out; any packet counts as life",
    ),
    (
        30,
        2,
        (),
        ("3.2.2-21", "3.2.2-22"),
        "uses its own Server Keep Alive if it sent one, else the client's value",
    ),
    (
        31,
        2,
        (),
        ("3.1.2-24", "3.1.2-25"),
        "never sends a packet larger than the client's Maximum Packet Size; drops that "
        "message and goes on as if it was delivered",
    ),
    (
        32,
        2,
        (),
        ("3.2.2-15",),
        "announces its own Maximum Packet Size and closes (0x95) on a larger packet, "
        "before the whole of it is buffered",
    ),
    (
        33,
        2,
        (),
        ("3.1.2-29",),
        "with Request Problem Information 0 sends no Reason String or User Property in "
        "acknowledgements",
    ),
    (
        34,
        2,
        (),
        ("4.12.0-1", "4.12.0-6"),
        "refuses an unknown Authentication Method (0x8C) and never sends AUTH to a client "
        "that named none",
    ),
    (
        35,
        3,
        ("3.1.2-4",),
        ("3.1.2-5",),
        "resumes subscriptions, queued and in-flight messages for clean session/clean start 0",
    ),
    (
        36,
        3,
        ("3.1.2-5",),
        ("3.1.2-23",),
        "keeps QoS 1 and 2 messages for an absent client, in order, up to a documented limit",
    ),
    (
        37,
        3,
        ("3.1.2-6",),
        ("3.1.2-4",),
        "forgets everything on clean session/clean start 1, subscriptions and in-flight "
        "state alike",
    ),
    (
        38,
        3,
        ("3.1.2.7",),
        ("3.1.2-4",),
        "does not delete retained messages with the session that published them",
    ),
    (
        39,
        3,
        ("4.1.0-1", "4.1.0-2"),
        ("4.1.0-1", "4.1.0-2"),
        "keeps the state while connected, and drops it when Session Expiry Interval has "
        "run out (0: at the close; 0xFFFFFFFF: never; a DISCONNECT can change it, but not "
        "from 0 to more: 0x82)",
    ),
    (
        40,
        3,
        ("4.4.0-1",),
        ("4.4.0-1",),
        "after reconnection sends unacknowledged PUBLISH (DUP 1) and PUBREL again with "
        "the old ids, in the old order; 5.0: only then, never on a live connection",
    ),
    (
        41,
        3,
        ("4.5.0-1",),
        ("4.5.0-1",),
        "takes a message into every matching session before it acknowledges it to the publisher",
    ),
    (
        42,
        3,
        (),
        ("3.14.4-3", "3.1.2-10"),
        "on a normal DISCONNECT drops the will; on DISCONNECT 0x04 publishes it",
    ),
    (
        43,
        4,
        ("3.1.2-8",),
        ("3.1.2-7", "3.1.2-8"),
        "publishes the will on: lost connection, keep-alive timeout, protocol error, takeover",
    ),
    (
        44,
        4,
        ("3.1.2-10", "3.14.4-3"),
        ("3.1.2-10",),
        "publishes it once, and not after a DISCONNECT",
    ),
    (
        45,
        4,
        ("3.1.2-16", "3.1.2-17"),
        ("3.1.2-14", "3.1.2-15"),
        "publishes it retained or not, with the QoS asked for, and applies the ACL of its client",
    ),
    (
        46,
        4,
        (),
        ("3.1.3-9",),
        "waits for Will Delay Interval, and does not publish it if the session is resumed "
        "before; publishes at once when the session ends first",
    ),
    (
        47,
        4,
        (),
        ("3.2.2-12", "3.2.2-13"),
        "refuses a CONNECT whose will has a QoS (0x9B) or retain flag (0x9A) that it does "
        "not offer",
    ),
    (
        48,
        5,
        ("3.3.1-1",),
        ("3.3.1-1",),
        "sets DUP when it sends a message again",
    ),
    (
        49,
        5,
        ("3.3.1-2",),
        ("3.3.1-2",),
        "treats DUP 1 with QoS 0 as malformed and never sends it",
    ),
    (
        50,
        5,
        ("3.3.1-3",),
        ("3.3.1-3",),
        "does not pass on the publisher's DUP",
    ),
    (
        51,
        5,
        ("3.3.1-4",),
        ("3.3.1-4",),
        "closes on QoS 3",
    ),
    (
        52,
        5,
        ("3.3.1-5",),
        ("3.3.1-5",),
        "stores the newest retained message of a topic, with its QoS and properties",
    ),
    (
        53,
        5,
        ("3.3.1-6", "3.3.1-8"),
        ("3.3.1-9",),
        "sends it with RETAIN 1 to a new subscription, for every matching topic, "
        "wildcards included",
    ),
    (
        54,
        5,
        ("3.3.1-9",),
        ("3.3.1-12",),
        "sends it with RETAIN 0 to subscriptions that existed already",
    ),
    (
        55,
        5,
        ("3.3.1-10", "3.3.1-11"),
        ("3.3.1-6", "3.3.1-7"),
        "deletes the retained message on an empty payload, forwards that message to live "
        "subscribers, and stores nothing",
    ),
    (
        56,
        5,
        ("3.3.1-12",),
        ("3.3.1-8",),
        "with RETAIN 0 neither stores nor replaces",
    ),
    (
        57,
        5,
        (),
        ("3.3.1-10", "3.3.1-11"),
        "Retain Handling 1: retained messages for new subscriptions only; 2: none",
    ),
    (
        58,
        5,
        (),
        ("3.3.1-13",),
        "Retain As Published 1: passes the publisher's RETAIN flag on",
    ),
    (
        59,
        5,
        ("3.3.2-2",),
        ("3.3.2-2",),
        "closes on a topic name with `+` or `#` (and on an empty one without topic alias)",
    ),
    (
        60,
        5,
        ("3.3.4-1",),
        ("3.3.4-1",),
        "answers QoS 1 with PUBACK and QoS 2 with PUBREC, also when nobody is subscribed "
        "or the ACL denies it (3.1.1: accept or close, documented; 5.0: 0x87)",
    ),
    (
        61,
        5,
        ("3.3.5-1",),
        ("3.3.4-2",),
        "delivers with the highest QoS of overlapping subscriptions when it sends one copy",
    ),
    (
        62,
        5,
        ("4.3.2-2",),
        ("4.3.2-4", "4.3.2-5"),
        "QoS 1 in: acknowledges every PUBLISH; after the PUBACK the same id is a new message",
    ),
    (
        63,
        5,
        ("4.3.3-2",),
        ("4.3.3-8", "4.3.3-10"),
        "QoS 2 in: until PUBREL acknowledges a repeated id by PUBREC without delivering "
        "it again, across reconnections",
    ),
    (
        64,
        5,
        ("4.3.3-2",),
        ("4.3.3-11", "4.3.3-12"),
        "QoS 2 in: answers PUBREL with PUBCOMP, also for an id it does not know (5.0: "
        "0x92), and afterwards the id is new",
    ),
    (
        65,
        5,
        ("4.3.3-1",),
        ("4.3.3-4", "4.3.3-6"),
        "QoS 2 out: PUBREC → PUBREL, and never the PUBLISH again after that",
    ),
    (
        66,
        5,
        ("3.6.1-1",),
        ("3.6.1-1",),
        "sends PUBREL with flags 0010 and closes on any other",
    ),
    (
        67,
        5,
        (),
        ("4.4.0-2",),
        "takes PUBACK or PUBREC with a failure code as the end of that message and frees the id",
    ),
    (
        68,
        5,
        ("4.6.0-5", "4.6.0-6"),
        ("4.6.0-5", "4.6.0-6"),
        "keeps the order per publisher, topic and QoS (1,000 messages at full speed, two "
        "publishers)",
    ),
    (
        69,
        5,
        (),
        ("3.3.4-9", "4.9.0-2"),
        "never has more QoS 1 and 2 messages in flight than the client's Receive Maximum; "
        "the next goes out with the acknowledgement",
    ),
    (
        70,
        5,
        (),
        ("3.3.4-7",),
        "closes (0x93) when a client exceeds the broker's Receive Maximum",
    ),
    (
        71,
        5,
        (),
        ("4.9.0-3",),
        "goes on answering PINGREQ, SUBSCRIBE and so on while the quota is used up",
    ),
    (
        72,
        5,
        (),
        ("3.3.2-5", "3.3.2-6"),
        "drops an expired message (queued, retained, will) and sends the remaining "
        "Message Expiry Interval",
    ),
    (
        73,
        5,
        (),
        ("3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20"),
        "passes Payload Format, Response Topic, Correlation Data, Content Type and User "
        "Properties on unchanged, in order, duplicates too; also through retained "
        "messages, wills and queues",
    ),
    (
        74,
        5,
        (),
        ("3.3.2-14",),
        "closes on a Response Topic with wildcards",
    ),
    (
        75,
        5,
        (),
        ("3.3.2-8", "3.3.2-9", "3.3.2-12"),
        "accepts aliases 1 … its maximum, closes (0x94) on 0 or more than that, and "
        "(0x82) on an alias never set",
    ),
    (
        76,
        5,
        (),
        ("3.3.2-7",),
        "forgets aliases with the connection; re-sets them when sent again with another topic",
    ),
    (
        77,
        5,
        (),
        ("3.3.2-11", "3.1.2-27"),
        "sends no alias above the client's maximum; none when that is absent",
    ),
    (
        78,
        5,
        (),
        ("3.3.4-6",),
        "closes on a Subscription Identifier in a client's PUBLISH",
    ),
    (
        79,
        6,
        ("3.8.1-1", "3.10.1-1"),
        ("3.8.1-1", "3.10.1-1"),
        "closes on SUBSCRIBE or UNSUBSCRIBE with flags other than 0010",
    ),
    (
        80,
        6,
        ("3.8.3-3", "3.10.3-2"),
        ("3.8.3-2", "3.10.3-2"),
        "closes on an empty list of filters",
    ),
    (
        81,
        6,
        ("3.8.3-4",),
        ("3.8.3-5",),
        "closes on QoS 3, on reserved option bits, on Retain Handling 3",
    ),
    (
        82,
        6,
        ("3.8.4-1", "3.8.4-2"),
        ("3.8.4-1", "3.8.4-2"),
        "answers with one SUBACK of the same id",
    ),
    (
        83,
        6,
        ("3.8.4-5", "3.9.3-1"),
        ("3.8.4-6", "3.9.3-1"),
        "gives one code per filter in the order asked, 0x80 or above for the one that is "
        "denied, and serves the others",
    ),
    (
        84,
        6,
        ("3.8.4-3",),
        ("3.8.4-3", "3.8.4-4"),
        "replaces a subscription with the same filter: retained messages again (5.0: "
        "Retain Handling 0), no message lost or doubled",
    ),
    (
        85,
        6,
        ("3.8.4-6",),
        ("3.8.4-8",),
        "delivers with min(publish QoS, granted QoS)",
    ),
    (
        86,
        6,
        ("3.10.4-1", "3.10.4-2", "3.10.4-3"),
        ("3.10.4-1", "3.10.4-2", "3.10.4-3"),
        "compares filters character by character, stops new deliveries at once, finishes "
        "those in flight",
    ),
    (
        87,
        6,
        ("3.10.4-4", "3.10.4-5", "3.10.4-6"),
        ("3.10.4-4", "3.10.4-5", "3.11.3-1"),
        "always answers UNSUBACK, also when nothing matched (5.0: 0x11), one code per filter",
    ),
    (
        88,
        6,
        (),
        ("3.8.3-3",),
        "No Local: does not send a client its own messages; is a protocol error with a "
        "shared subscription (MQTT-3.8.3-4)",
    ),
    (
        89,
        6,
        (),
        ("3.3.4-3", "3.3.4-4", "3.3.4-5"),
        "returns the Subscription Identifiers of the matching subscriptions; 0 as an "
        "identifier closes",
    ),
    (
        90,
        6,
        ("4.7.1-2", "4.7.1-3"),
        ("4.7.1-1", "4.7.1-2"),
        "accepts `#` only as a whole last level and `+` only as a whole level; `a/#` "
        "matches `a`; `+` matches an empty level",
    ),
    (
        91,
        6,
        ("4.7.2-1",),
        ("4.7.2-1",),
        "does not match `#`, `+/…` with topics that begin with `$`; `$SYS/#` does",
    ),
    (
        92,
        6,
        ("4.7.3-1", "4.7.3-2", "4.7.3-3"),
        ("4.7.3-1", "4.7.3-2", "4.7.3-3"),
        "refuses empty topics and filters and U+0000; takes 65,535 bytes or documents its "
        "lower limit (levels as well)",
    ),
    (
        93,
        6,
        ("4.7.3-4",),
        ("4.7.3-4",),
        "does not normalise: `a`, `A`, `/a`, `a/`, `a//b` are all different",
    ),
    (
        94,
        6,
        (),
        ("4.8.2-1", "4.8.2-2"),
        "parses `$share/name/filter`; refuses an empty name, `+`, `#` or `/` in it, or no filter",
    ),
    (
        95,
        6,
        (),
        ("4.8.2-3", "4.8.2-4", "4.8.2-5", "4.8.2-6"),
        "sends each message to one member of the group with its granted QoS; keeps a QoS "
        "2 message with the member that began it; drops it if the member refuses it; "
        "sends no retained messages to shared subscriptions",
    ),
    (
        96,
        7,
        ("3.12.4-1",),
        ("3.12.4-1",),
        "answers PINGREQ with PINGRESP; closes on a PINGREQ with flags or a body",
    ),
    (
        97,
        7,
        ("3.14.1-1",),
        ("3.14.1-1",),
        "closes on DISCONNECT with flags and then counts it as abnormal (the will goes out)",
    ),
    (
        98,
        7,
        ("3.14.4-2",),
        ("3.14.4-1",),
        "handles nothing that follows a DISCONNECT in the same segment",
    ),
    (
        99,
        7,
        (),
        ("3.14.0-1", "3.14.2-2"),
        "sends DISCONNECT only after a successful CONNACK, and never with Session Expiry Interval",
    ),
    (
        100,
        7,
        (),
        ("4.13",),
        "closes on packets only a server sends: CONNACK, SUBACK, UNSUBACK, PINGRESP from a client",
    ),
    (
        101,
        8,
        ("6.0.0-1",),
        ("6.0.0-1",),
        "takes binary frames only; closes on a text frame",
    ),
    (
        102,
        8,
        ("6.0.0-2",),
        ("6.0.0-2",),
        "works when a frame holds half a packet, two packets, or one byte",
    ),
    (
        103,
        8,
        ("6.0.0-4",),
        ("6.0.0-4",),
        "selects the sub-protocol `mqtt` from those offered",
    ),
    (
        104,
        8,
        ("4.2",),
        ("4.2.0-1",),
        "behaves the same when every packet arrives one byte at a time, or a hundred in "
        "one segment, over TCP, TLS and WebSocket",
    ),
)

STATEMENTS: dict[int, Statement] = {row[0]: Statement(*row) for row in _ROWS}
