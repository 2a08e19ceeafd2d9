"""Access control per listener: a listener with a chain or rules of its own is asked for itself.

    client of ssl:devices --> AccessControl(auth_chain, acl_file of that listener)
    any other client      --> the global one

A plugin's module goes to the global one, and to each listener whose chain names it. Descriptions
and counters are those of all; everything else that is no question about a client goes to the
global one. While a plugin is loaded again its places are held: what only it could decide is
refused, and who was let in or allowed something is not asked about until it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from mqttd.access.auth.guard import Gone, stays
from mqttd.config.schema import AclShadow, Config, Listener
from mqttd.session.ground.refusal import Refusal
from mqttd.types import Action, ClientInfo

__all__ = ["AccessByListener", "config_of", "configs_by_listener"]


def config_of(config: Config, listener: Listener) -> Config | None:
    """The configuration with a listener's chain and rules in place; None if it has neither."""
    if not listener.auth_chain and not listener.acl_file:
        return None
    if listener.auth_chain:
        auth = msgspec.structs.replace(config.auth, chain=listener.auth_chain)
        config = msgspec.structs.replace(config, auth=auth)
    if listener.acl_file:
        # The candidate is one for the common rules.
        acl = msgspec.structs.replace(config.acl, file=listener.acl_file, shadow=AclShadow())
        config = msgspec.structs.replace(config, acl=acl)
    return config


def configs_by_listener(config: Config) -> dict[str, Config]:
    """Listener id (`ssl:devices`) -> the configuration with its chain and rules in place."""
    found = {}
    for kind, names in config.listener.items():
        for name, listener in names.items():
            own = config_of(config, listener)
            if own is not None:
                found[f"{kind}:{name}"] = own
    return found


class AccessByListener:
    """Asks the `AccessControl` of a client's listener; `own` are those that are not the global."""

    def __init__(self, common: Any, own: dict[str, Any]) -> None:
        self.common = common
        self.own = own
        #: Modules of plugins with their places, by kind and name: access controls that come later
        #: get them too.
        self._modules: dict[tuple[str, str], tuple[Any, int | None]] = {}
        #: Places of theirs that are held.
        self._held: dict[tuple[str, str], int] = {}
        self._told: Callable[[], None] | None = None
        self.on_change = None

    def put(self, listener: str, access: Any) -> None:
        """Ask `access` about the clients of a listener from now on; None: the global one.

        Who is connected there is to be asked again: `on_change` is called.
        """
        if access is not None:
            self._equip(access)
            access.on_change = self._tell
        before = self.own.pop(listener, None)
        if access is not None:
            self.own[listener] = access
        if before is not None:
            before.close(self._names())
        if before is not None or access is not None:
            self._tell()

    def renew(self, common: Any, own: dict[str, Any]) -> None:
        """Ask other access controls from now on, with the plugins' modules where they were.

        Counters go on; users that are gone are told of. `on_change` is called.
        """
        for (kind, name), (module, seq) in self._modules.items():
            common.register_mod(kind, name, module, seq)
        for (kind, name), place in self._held.items():
            common.hold_mod(kind, name, place)
        for listener, access in own.items():
            self._equip(access)
            if listener in self.own:
                access.follow(self.own[listener])
        common.follow(self.common)
        before = self._all()
        self.common, self.own = common, own
        self.on_change = self._told
        for access in before:
            access.close(self._names())
        self._tell()

    def _equip(self, access: Any) -> None:
        """Give a listener's access control the plugins' modules that its chain names."""
        for (kind, name), (module, _) in self._modules.items():
            if kind == "auth" and name in access.config.auth.chain:
                access.register_mod("auth", name, module)

    def plugins_modules(self) -> set[str]:
        """The authentication modules that are plugins'."""
        return {name for kind, name in self._modules if kind == "auth"}

    def _names(self) -> set[str]:
        return {name for _, name in self._modules}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.common, name)

    def _of(self, client: ClientInfo) -> Any:
        return self.own.get(client.listener, self.common)

    def _all(self) -> list[Any]:
        return [self.common, *self.own.values()]

    @property
    def on_change(self) -> Callable[[], None] | None:
        """Called when an answer of `authorize` may have changed."""
        return self._told

    @on_change.setter
    def on_change(self, told: Callable[[], None] | None) -> None:
        self._told = told
        for access in self._all():
            access.on_change = self._tell

    def _tell(self) -> None:
        if self._told is not None and not self._held:
            self._told()

    def register_mod(
        self, kind: str, name: str, module: Any = None, seq: int | None = None
    ) -> None:
        """As `AccessControl.register_mod`, where the chain of a listener names it there too."""
        self.common.register_mod(kind, name, module, seq)
        if module is not None:
            self._modules[kind, name] = (module, seq)
        for access in self._naming(kind, name):
            access.register_mod(kind, name, module)
        if self._held.pop((kind, name), None) is not None:
            self._tell()

    def unregister_mod(self, kind: str, name: str) -> None:
        """As `AccessControl.unregister_mod`, wherever it is registered."""
        self._modules.pop((kind, name), None)
        for access in self._naming(kind, name):
            access.unregister_mod(kind, name)
        self.common.unregister_mod(kind, name)

    def hold_mod(self, kind: str, name: str) -> None:
        """As `AccessControl.hold_mod`; `on_change` is not called until all places are given."""
        self._modules.pop((kind, name), None)
        for access in self._naming(kind, name):
            access.hold_mod(kind, name)
        self._held[kind, name] = self.common.hold_mod(kind, name)

    def release_mod(self, kind: str, name: str) -> None:
        """As `AccessControl.release_mod`."""
        if self._held.pop((kind, name), None) is not None:
            for access in (*self._naming(kind, name), self.common):
                access.release_mod(kind, name)

    def _naming(self, kind: str, name: str) -> list[Any]:
        if kind != "auth":
            return []
        return [access for access in self.own.values() if name in access.config.auth.chain]

    def authenticate(self, client: ClientInfo, password: bytes | None, gone: Gone = stays) -> Any:
        """As `AccessControl.authenticate`."""
        return self._of(client).authenticate(client, password, gone)

    def begin(self, client: ClientInfo, method: str) -> Any:
        """As `AccessControl.begin`."""
        return self._of(client).begin(client, method)

    def still_admits(self, client: ClientInfo, module: str) -> bool:
        """As `AccessControl.still_admits`."""
        return bool(self._of(client).still_admits(client, module))

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """As `AccessControl.authorize`, with no call between: it is asked for each topic."""
        asked = self.own.get(client.listener, self.common) if self.own else self.common
        allowed: bool = asked.authorization.authorize(client, action, topic)
        return allowed

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Any:
        """As `AccessControl.decide`."""
        return self._of(client).decide(client, action, topic)

    # The numbers of classes are dealt out in turn: the n-th of the k-th access has n * count + k.
    # While a place is held others may come in the place of these, and `on_change` is not called:
    # then no number is given, nor asked about, that could be of both.

    def class_of(self, client: ClientInfo) -> int:
        """As `AccessControl.class_of`; `on_change` is called when numbers hold no longer."""
        if self._held:
            return -1
        if not self.own:
            return int(self.common.class_of(client))
        asked = self._of(client)
        number: int = asked.class_of(client)
        if number < 0:
            return number
        every = self._all()
        return number * len(every) + every.index(asked)

    def constant(self, number: int) -> bool:
        """As `AccessControl.constant`."""
        if self._held:
            return False
        if not self.own:
            return bool(self.common.constant(number))
        every = self._all()
        return bool(every[number % len(every)].constant(number // len(every)))

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> int:
        """As `AccessControl.judge`."""
        if self._held:
            return 0
        if not self.own:
            return int(self.common.judge(number, qos, retain, topic))
        every = self._all()
        asked = every[number % len(every)]
        return int(asked.judge(number // len(every), qos, retain, topic))

    def realms(self, client: ClientInfo) -> list[str]:
        """As `AccessControl.realms`."""
        found: list[str] = self._of(client).realms(client)
        return found

    def listening(self, client: ClientInfo) -> list[str]:
        """As `AccessControl.listening`."""
        found: list[str] = self._of(client).listening(client)
        return found

    def refusal(self, client: ClientInfo, action: Action, topic: str) -> Refusal | None:
        """As `AccessControl.refusal`."""
        found: Refusal | None = self._of(client).refusal(client, action, topic)
        return found

    def questions_of(self, listener: str) -> Any:
        """As `AccessControl.questions_of`."""
        return self.own.get(listener, self.common).questions

    @property
    def depends_on_qos_retain(self) -> bool:
        """Whether any rule of any listener looks at QoS or retain."""
        return any(access.depends_on_qos_retain for access in self._all())

    def reload_auth(self) -> None:
        """Read users again, everywhere; the first fault is raised at the end."""
        _each(self._all(), "reload_auth")

    def prepare_acl(self) -> None:
        """As `AccessControl.prepare_acl`."""
        _each(self._all(), "prepare_acl")

    def reload_acl(self) -> None:
        """Read rules again, everywhere; the first fault is raised at the end."""
        _each(self._all(), "reload_acl")

    def describe(self) -> list[dict[str, object]]:
        """As `AccessControl.describe`, of each; `listener` names whose it is, "" the global one."""
        found = [{**entry, "listener": ""} for entry in self.common.describe()]
        for name, access in self.own.items():
            found += [{**entry, "listener": name} for entry in access.describe()]
        return found

    def counters(self) -> dict[str, float]:
        """As `AccessControl.counters`, the sums over all."""
        found: dict[str, float] = {}
        for access in self._all():
            for name, count in access.counters().items():
                found[name] = found.get(name, 0) + count
        return found

    def close(self) -> None:
        """Let go of what the modules hold."""
        for access in self._all():
            access.close()


def _each(asked: list[Any], method: str) -> None:
    fault: Exception | None = None
    for access in asked:
        try:
            getattr(access, method)()
        except Exception as error:
            fault = fault or error
    if fault is not None:
        raise fault
