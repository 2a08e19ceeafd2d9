"""Callbacks for message.publish: drop what is too long, put a prefix before the rest."""

from mqttd.types import OK, STOP


def drop_long(message, limit):
    """Called with the accumulator, then the init_args of the registration."""
    if len(message.payload) > limit:
        return STOP(None)  # no message: it goes nowhere, and nobody after us is asked
    return OK  # the next callback, the message as it is


def add_prefix(message, prefix):
    return OK(message.replace(topic=prefix + message.topic))  # a new message, the same id


def hook_all(hooks):
    """Hook both: drop_long first, for its higher priority; add_prefix for some topics only."""
    hooks.hook("message.publish", drop_long, init_args=(1000,), priority=10)
    hooks.hook("message.publish", add_prefix, init_args=("site-1/",), topic_filter="raw/#")
