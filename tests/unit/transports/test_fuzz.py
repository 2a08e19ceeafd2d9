"""The fuzz programs run, and find nothing in a short while."""

from __future__ import annotations

import pytest

from fuzz import proxy, websocket


@pytest.mark.slow
def test_websocket_frames_and_requests() -> None:
    assert websocket.main(["--executions", "2000", "--seed", "11"]) == 0


def test_proxy_headers() -> None:
    assert proxy.main(["--executions", "2000", "--seed", "11"]) == 0
