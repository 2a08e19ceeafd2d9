"""What is said of a back end's failure: words, and nothing that an error carries of its own."""

from __future__ import annotations

import socket

import pytest
from twisted.internet.error import ConnectionLost, ConnectionRefusedError, DNSLookupError
from twisted.internet.error import TimeoutError as UserTimeout
from twisted.python.failure import Failure
from twisted.web.client import ResponseNeverReceived

from mqttd.access.auth.back_end import words_of
from mqttd.types import PluginError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PluginError("the service's answer has no Content-Length"),
         "the service's answer has no Content-Length"),
        (ConnectionRefusedError(), "its back end could not be reached"),
        (ConnectionLost(), "its back end closed the connection"),
        (ConnectionResetError(104, "reset"), "its back end closed the connection"),
        (UserTimeout(), "its back end did not answer in time"),
        (TimeoutError("postgresql://broker:secret@db"), "its back end did not answer in time"),
        (DNSLookupError(), "the name of its back end is not known"),
        (socket.gaierror(-2, "unknown"), "the name of its back end is not known"),
        (PermissionError(13, "Permission denied", "users"), "Permission denied"),
        (ResponseNeverReceived([Failure(ConnectionLost())]), "its back end closed the connection"),
        (KeyError("postgresql://broker:secret@db"), "it raised KeyError"),
    ],
)  # fmt: skip
def test_a_failure_is_told_in_words(error: BaseException, words: str) -> None:
    assert words_of(error) == words
