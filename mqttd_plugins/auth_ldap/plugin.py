"""Authenticates clients against an LDAP directory, with ldap3.

    user_dn     uid=${username},ou=people,dc=example,dc=com --> bind with the password --> yes
    search      filter (uid=${username}) as bind_dn --> one entry --> bind as it --> yes
    groups      filter (member=${dn}) --> names of groups --> superuser, rules

Promise: what a client calls itself is escaped for the DN or the filter it stands in; an empty
password, which a directory takes for no authentication and answers with success (RFC 4513, 5.1.2),
is refused without asking. The connection is encrypted (ldaps, or StartTLS) and the server's
certificate verified, unless it is on this machine or `plaintext` says otherwise; referrals are not
followed. Connections are kept in two pools: those that try clients' passwords search for nothing
but the entry they are bound as. A directory takes no notice of case and blanks: the client goes by
the name in its entry, so that rules and bans for one spelling hold for all.
"""

from __future__ import annotations

import ssl
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import ldap3
from ldap3.core.exceptions import (
    LDAPAttributeError,
    LDAPCommunicationError,
    LDAPException,
    LDAPInvalidDnError,
    LDAPInvalidFilterError,
    LDAPObjectClassError,
    LDAPSessionTerminatedByServerError,
)
from ldap3.utils.conv import escape_filter_chars
from ldap3.utils.dn import escape_rdn
from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import Judge, Threaded
from mqttd.plugins.backends.pool import Pool
from mqttd.plugins.backends.rules import acl_text, is_superuser
from mqttd.plugins.backends.settings import BackendSettings, read_secret, require_encryption
from mqttd.plugins.backends.templates import Template
from mqttd.types import AuthError, AuthVerdict

__all__ = ["AuthLdap", "GroupRule", "Groups", "Search", "Settings"]

_INVALID_CREDENTIALS: Final = 49
#: Answers to a bind that say something of this user, not of the server.
_USER_RESULTS: Final = frozenset((19, 32, 34, 48, 49, 50, 53))
_NO_SUCH_OBJECT: Final = 32
#: What a strange name may bring ldap3 to raise.
_NAME_ERRORS: Final = (
    LDAPInvalidDnError, LDAPInvalidFilterError, LDAPAttributeError, LDAPObjectClassError,
)  # fmt: skip
_MOST_GROUPS: Final = 1000


class Search(Struct, frozen=True, kw_only=True):
    """Finds the entry of a user."""

    base: Annotated[str, Meta(min_length=1)]
    filter: Annotated[str, Meta(min_length=1)] = "(uid=${username})"
    scope: Literal["base", "level", "subtree"] = "subtree"


class GroupRule(Struct, frozen=True, kw_only=True):
    """What the members of a group may do; the keys are those of rules everywhere."""

    group: Annotated[str, Meta(min_length=1)]
    topic: str | list[str]
    permission: Literal["allow", "deny"] = "allow"
    action: Literal["publish", "subscribe", "all"] = "all"


class Groups(Struct, frozen=True, kw_only=True):
    """Finds the groups of a user; ``${dn}`` is the user's entry."""

    base: Annotated[str, Meta(min_length=1)]
    filter: Annotated[str, Meta(min_length=1)] = "(member=${dn})"
    scope: Literal["base", "level", "subtree"] = "subtree"
    #: The attribute that names a group.
    name: Annotated[str, Meta(min_length=1)] = "cn"
    #: Groups whose members pass every access check.
    superusers: tuple[str, ...] = ()
    #: Groups of which a user has to be in one; empty lets all users in.
    required: tuple[str, ...] = ()
    rules: tuple[GroupRule, ...] = ()


class Attributes(Struct, frozen=True, kw_only=True):
    """Attributes of a user's entry that give rights; empty ones are not looked at."""

    superuser: str = ""
    publish: str = ""
    subscribe: str = ""
    both: str = ""


class Settings(BackendSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_ldap.conf`` may say."""

    #: ldap://host[:port] or ldaps://host[:port]
    url: Annotated[str, Meta(min_length=1)] = "ldap://127.0.0.1"
    #: Encrypt a connection to ldap:// before anything else.
    starttls: bool = False
    #: The certificates that vouch for the server; empty are those of the system.
    ca_file: str = ""
    #: Who searches; without one the search is anonymous.
    bind_dn: str = ""
    #: The password of `bind_dn`, or the file that holds it.
    bind_password: str = ""
    bind_password_file: str = ""
    #: The DN of a user, where it follows from the name.
    user_dn: str = ""
    #: How the entry of a user is found, where it does not.
    search: Search | None = None
    #: The attribute with the user name, by which the client goes.
    username_attribute: Annotated[str, Meta(min_length=1)] = "uid"
    groups: Groups | None = None
    attributes: Attributes = Attributes()


@implementer(IPlugin)
class AuthLdap:
    """The running part. `connection` and `server` are how tests stand in for ldap3."""

    def __init__(
        self,
        connection: Callable[..., Any] = ldap3.Connection,
        server: Callable[..., Any] = ldap3.Server,
    ) -> None:
        self._connection = connection
        self._new_server = server
        self._searching: Pool[Any] | None = None
        self._binding: Pool[Any] | None = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check what a schema cannot, register the module; nothing is connected yet."""
        self._config = config
        self._judge = Judge(None, config.unknown)
        parts = urlsplit(config.url)
        shown = f"url = {config.url!r}"
        if parts.scheme not in ("ldap", "ldaps") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{shown}: expected ldap://host or ldaps://host")
        if parts.scheme == "ldaps" and config.starttls:
            raise ValueError(f"{shown}: is encrypted already; expected starttls = false")
        encrypted = parts.scheme == "ldaps" or config.starttls
        require_encryption(shown, parts.hostname, encrypted, config.plaintext)
        if bool(config.user_dn) == (config.search is not None):
            raise ValueError("user_dn, search: expected one of them")
        self._user_dn = Template(config.user_dn, "user_dn") if config.user_dn else None
        self._filter: Template | None = None
        needs = self._user_dn.names if self._user_dn is not None else frozenset[str]()
        if config.search is not None:
            self._filter = Template(config.search.filter, "search.filter")
            needs = self._filter.names
        if not needs:
            raise ValueError("user_dn, search.filter: expected a placeholder like ${username}")
        self._names = needs
        self._group_filter: Template | None = None
        if config.groups is not None:
            self._group_filter = Template(config.groups.filter, "groups.filter", {"${dn}": "dn"})
            acl_text(_rule(rule) for rule in config.groups.rules)
        secret = read_secret("bind_password", config.bind_password, config.bind_password_file)
        if config.bind_dn and not secret:
            raise ValueError("bind_dn: expected bind_password or bind_password_file with it")
        tls = None
        if encrypted:
            tls = ldap3.Tls(
                validate=ssl.CERT_REQUIRED,
                ca_certs_file=config.ca_file or None,
                version=ssl.PROTOCOL_TLS_CLIENT,
            )
        # One for each connection: ldap3's passes by an address that has failed for seconds after
        # it is back, and looks its name up every five minutes.
        self._server: Callable[[], Any] = lambda: self._new_server(
            parts.hostname,
            port=parts.port or (636 if parts.scheme == "ldaps" else 389),
            use_ssl=parts.scheme == "ldaps",
            tls=tls,
            get_info=ldap3.NONE,
            connect_timeout=config.timeout,
        )
        lost = (LDAPCommunicationError, LDAPSessionTerminatedByServerError, OSError)
        self._searching = Pool(lambda: self._open(config.bind_dn, secret), _close, lost)
        self._binding = Pool(lambda: self._open("", "", bind=False), _close, lost)
        how = config.user_dn or f"{config.search.filter} in {config.search.base}"  # type: ignore[union-attr]
        text = f"auth_ldap: {config.url}, {how}"
        module = Threaded(handle, text, needs, self._ask, config.timeout)
        handle.register_mod("auth", handle.name, module)

    def unload(self) -> None:
        """Close the connections."""
        for pool in (self._searching, self._binding):
            if pool is not None:
                pool.close()

    # -- in a thread

    def _ask(self, values: dict[str, str], password: bytes) -> AuthVerdict:
        if not password:
            return AuthError("an empty password")
        try:
            secret = password.decode()
        except UnicodeDecodeError:
            return AuthError("the password is not UTF-8")
        if "\0" in secret:
            return self._judge.refuse()
        try:
            entry = self._entry(values)
            if entry is None:
                return self._judge.unknown()
            dn = str(entry["dn"])
            if not self._fits(entry, secret):
                return self._judge.refuse()
        except _NAME_ERRORS:
            return self._judge.unknown()
        if "username" in self._names:
            username = _named(values["username"], _values(entry, self._config.username_attribute))
            if username is None:
                return AuthError(f"{dn}: its {self._config.username_attribute} is another name")
            values = {**values, "username": username}
        return self._rights(dn, values)

    def _entry(self, values: dict[str, str]) -> dict[str, Any] | None:
        """The entry of the user; None if there is none, or more than one."""
        if self._user_dn is not None:
            if any(not values[name] for name in self._user_dn.names):
                return None
            return {"dn": self._user_dn.fill(values, _escape_rdn)}
        assert self._filter is not None and self._config.search is not None
        search = self._config.search
        found = self._search(
            search.base,
            self._filter.fill(values, escape_filter_chars),
            search.scope,
            [self._config.username_attribute],
            2,
        )
        return dict(found[0]) if len(found) == 1 else None

    def _fits(self, entry: dict[str, Any], secret: str) -> bool:
        """Whether the directory takes the password for this entry; reads it if it was not."""
        dn = entry["dn"]
        assert self._binding is not None

        def fits(connection: Any) -> bool:
            _check_open(connection)
            connection.user, connection.password = dn, secret
            connection.authentication = ldap3.SIMPLE
            if connection.bind():
                if "raw_attributes" not in entry:
                    attribute = self._config.username_attribute
                    read = self._read(connection, dn, "(objectClass=*)", "base", [attribute], 1)
                    entry.update(read[0] if read else {})
                return True
            result = int(connection.result["result"])
            if result not in _USER_RESULTS:
                raise LDAPException(f"bind: {connection.result['description']}")
            return False

        return self._binding.run(fits)

    def _rights(self, dn: str, values: dict[str, str]) -> AuthVerdict:
        """What the user's entry and groups allow."""
        rules: list[dict[str, Any]] = []
        superuser = False
        groups = self._config.groups
        if groups is not None:
            assert self._group_filter is not None
            text = self._group_filter.fill(
                {**dict.fromkeys(self._group_filter.names, ""), **values, "dn": dn},
                escape_filter_chars,
            )
            found = self._search(groups.base, text, groups.scope, [groups.name], _MOST_GROUPS)
            names = {name for entry in found for name in _values(entry, groups.name)}
            if groups.required and names.isdisjoint(groups.required):
                return AuthError("the user is in none of the required groups")
            superuser = not names.isdisjoint(groups.superusers)
            rules = [_rule(rule) for rule in groups.rules if rule.group in names]
        wanted = self._config.attributes
        kinds = (
            (wanted.publish, "publish"),
            (wanted.subscribe, "subscribe"),
            (wanted.both, "all"),
        )
        names_wanted = [name for name, _ in kinds if name]
        if wanted.superuser:
            names_wanted.append(wanted.superuser)
        if names_wanted:
            entries = self._search(dn, "(objectClass=*)", "base", names_wanted, 1)
            entry = entries[0] if entries else {}
            superuser = superuser or any(map(_true, _values(entry, wanted.superuser)))
            for name, action in kinds:
                rules += [
                    {"permission": "allow", "action": action, "topic": topic}
                    for topic in _values(entry, name)
                ]
        return self._judge.allow(superuser, rules, values.get("username"))

    def _search(
        self, base: str, text: str, scope: str, attributes: list[str], most: int
    ) -> list[Mapping[str, Any]]:
        """Up to `most` entries, as bind_dn."""
        assert self._searching is not None

        return self._searching.run(
            lambda connection: self._read(connection, base, text, scope, attributes, most)
        )

    def _read(
        self, connection: Any, base: str, text: str, scope: str, attributes: list[str], most: int
    ) -> list[Mapping[str, Any]]:
        _check_open(connection)
        connection.search(
            base,
            text,
            search_scope=scope.upper(),
            attributes=attributes,
            size_limit=most,
            time_limit=ceil(self._config.timeout),
        )
        result = int(connection.result["result"])
        # 4: there are more than asked for, which the caller sees by their number
        if result not in (0, 4, _NO_SUCH_OBJECT):
            raise LDAPException(f"search: {connection.result['description']}")
        return [entry for entry in connection.response or () if entry["type"] == "searchResEntry"]

    def _open(self, dn: str, secret: str, bind: bool = True) -> Any:
        """A connection that is encrypted if it is to be, and bound if `bind`."""
        connection = self._connection(
            self._server(),
            user=dn or None,
            password=secret or None,
            authentication=ldap3.SIMPLE if dn else ldap3.ANONYMOUS,
            receive_timeout=ceil(self._config.timeout),  # it takes whole seconds
            auto_referrals=False,
            raise_exceptions=False,
            check_names=False,
            read_only=True,
        )
        try:
            connection.open()
            if self._config.starttls and not connection.start_tls():
                raise LDAPException("the server refuses StartTLS")
            if bind and not connection.bind():
                raise LDAPException(f"bind_dn: {connection.result['description']}")
        except BaseException:
            with suppress(Exception):
                connection.unbind()
            raise
        return connection


def _check_open(connection: Any) -> None:
    """ldap3 would open a closed connection again by itself, and without StartTLS."""
    if connection.closed:
        raise ConnectionError("the server has closed the connection")


def _close(connection: Any) -> None:
    connection.unbind()


def _rule(rule: GroupRule) -> dict[str, Any]:
    return {"permission": rule.permission, "action": rule.action, "topic": rule.topic}


def _values(entry: Mapping[str, Any], name: str) -> list[str]:
    """The values of an attribute, whose name is written in any case."""
    if not name:
        return []
    for key, values in (entry.get("raw_attributes") or {}).items():
        if key.lower() == name.lower():
            return [value.decode("utf-8", "replace") for value in values]
    return []


def _named(said: str, names: list[str]) -> str | None:
    """Which of the names of an entry the client has said."""
    alike = [name for name in names if _folded(name) == _folded(said)]
    return said if said in alike else alike[0] if alike else None


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _true(value: str) -> bool:
    return is_superuser(value)


def _escape_rdn(value: str) -> str:
    """A value within a DN (RFC 4514); also what ldap3 leaves as it is."""
    escaped: str = escape_rdn(value)
    return escaped.replace("\0", "\\00")
