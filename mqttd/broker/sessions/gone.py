"""Whether a client still waits to be let in, or has gone meanwhile.

    WAITING   its socket is open                                     there
              closed, and something it sent has not been read yet    there: it has said it all
              closed, or reset                                       gone
    CLOSED                                                           gone

Who waits is not read from, so that its end shows where somebody looks for it.

Promise: asks the kernel once, and takes nothing from the socket.
"""

from __future__ import annotations

import socket

from mqttd.session.channel.channel import WAITING, Channel

__all__ = ["has_gone"]


def has_gone(channel: Channel) -> bool:
    """Whether nobody is there to be let in."""
    if channel.state != WAITING:
        return True
    if channel.fd < 0 or channel.rest is not None or channel.edge.behind(channel):
        return False
    try:
        peer = socket.socket(fileno=channel.fd)
    except OSError:
        return True
    try:
        return not peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        peer.detach()
