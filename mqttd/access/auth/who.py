"""Who gets past authentication, in a sentence for the operator."""

from __future__ import annotations

from mqttd.config.schema import Auth

__all__ = ["believes_any", "warning", "who_may_connect"]


def believes_any(auth: Auth) -> bool:
    """Whether clients come in under any user name."""
    return auth.anonymous == "any" and "anonymous" in auth.chain


def who_may_connect(auth: Auth) -> str:
    """Who may connect."""
    allow = auth.anonymous if "anonymous" in auth.chain else "never"
    others = [name for name in auth.chain if name != "anonymous"]
    if others != ["username"]:
        checked = f"checked by {', '.join(others)}" if others else "refused"
        if allow == "never":
            return f"every client is {checked}"
        if allow == "any":
            first = f", unless {', '.join(others)} refuses it" if others else ""
            return f"anybody may connect under any user name{first}"
        where = "this machine" if allow == "loopback" else "anywhere"
        return f"clients from {where} need no user name, others are {checked}"
    return {
        "loopback": "clients on this machine need no password, others a user name and password",
        "always": "anybody may connect (auth.anonymous = always)",
        "any": "anybody may connect under any user name that is not in the file of users",
        "never": "every client needs a user name and password",
    }[allow]


def warning(auth: Auth) -> str:
    """What the operator is warned of at the start, "" where there is nothing."""
    if not believes_any(auth):
        return ""
    return (
        'auth.anonymous = "any": user names are not checked, whoever says one has its rights;'
        " rules about users protect nothing"
    )
