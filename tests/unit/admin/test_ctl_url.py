"""`mqttd-ctl --url` to a port where something else is spoken: one line says what was expected."""

from __future__ import annotations

import socket
import threading

import pytest

from mqttd.admin.ctl.client import Client, CtlError

TOKEN = "x" * 32


def test_a_port_that_closes_at_once_is_told_what_was_expected_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def close() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(CtlError, match=r"without an answer: expected the port of admin\.page"):
            Client(f"http://127.0.0.1:{port}", token=TOKEN, timeout=10).get("/status")
        thread.join(10)


def test_a_port_that_waits_for_http_is_asked_whether_it_has_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CtlError, match=r"did not answer within .* is it http:// there"):
            Client(url, token=TOKEN, timeout=0.2).get("/status")
