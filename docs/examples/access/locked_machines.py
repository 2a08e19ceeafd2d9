"""Access control of one's own: an operator locks a machine, and nobody may command it."""

from zope.interface import implementer

from mqttd.interfaces import IAccessExplainer, IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import Decision, Verdict

locked_machines = MqttdPlugin(
    name="locked_machines",
    version="1.0",
    description="Lets nobody command a machine that is locked.",
    factory="mqttd_plugins.locked_machines:Plugin",
)


@implementer(IAccessExplainer)
class LockedMachines:
    """Denies publications to `command/MACHINE` of locked machines, and says nothing else."""

    #: The verdicts look at topic and action alone: one is kept for every QoS and RETAIN.
    depends_on_qos_retain = False

    def __init__(self):
        self.locked = set()

    def init(self, opts):
        pass

    def check_acl(self, client, action, topic):
        return self.decide(client, action, topic).verdict

    def decide(self, client, action, topic):
        first, _, machine = topic.partition("/")
        if action.kind == "publish" and first == "command" and machine in self.locked:
            return Decision(Verdict.DENY, f"locked_machines: {machine} is locked")
        return Decision(Verdict.IGNORE, "locked_machines: not locked")

    def reload_acl(self):
        pass

    def description(self):
        return f"locked_machines: {len(self.locked)} locked"


@implementer(IPlugin)
class Plugin:
    """`mqttd-ctl locked_machines lock pump-1`, `... unlock pump-1`."""

    def load(self, handle, config):
        self.handle = handle
        self.module = LockedMachines()
        handle.register_mod("acl", "locked_machines", self.module, seq=0)
        handle.add_command("lock", self.lock, "Let nobody command these machines.")
        handle.add_command("unlock", self.unlock, "Let them be commanded again.")

    def lock(self, argv):
        self.module.locked.update(argv)
        return self.changed()

    def unlock(self, argv):
        self.module.locked.difference_update(argv)
        return self.changed()

    def changed(self):
        # Verdicts are kept: a module that is registered anew has all of them asked again.
        self.handle.unregister_mod("acl", "locked_machines")
        self.handle.register_mod("acl", "locked_machines", self.module, seq=0)
        return f"locked: {', '.join(sorted(self.module.locked)) or 'none'}"

    def unload(self):
        pass
