"""Life of a plugin: found, checked, loaded, reloaded, unloaded; whatever it does meanwhile."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

from mqttd.broker.ground.alarms import Alarms
from mqttd.plugins.active import Active
from mqttd.plugins.loader import discover, extra_of
from mqttd.plugins.process import PER_CALL, IsolatedPlugin
from mqttd.plugins.settings import PluginFileWarning, read_settings
from mqttd.types import Action, ClientInfo, PluginError
from tests.unit.plugins.conftest import Node, result_of

COUNTING = """
@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        self.seen = []
        handle.hook("message.publish", self.publish)
        handle.add_command("seen", lambda argv: ",".join(self.seen), "What was published.")
        handle.add_metric("seen_total", "Messages seen.", lambda: len(self.seen))
        handle.add_sys_topic("seen", lambda: len(self.seen))

    def publish(self, message):
        self.seen.append(message.topic)

    def unload(self):
        pass
"""


def row(node: Node, name: str) -> dict[str, object]:
    (found,) = [entry for entry in node.plugins.list() if entry["name"] == name]
    return found


def test_it_is_found_loaded_seen_and_unloaded(node: Node) -> None:
    path = node.write("acme", COUNTING)
    listed = row(node, "acme")
    assert (listed["state"], listed["version"], listed["file"]) == ("unloaded", "1.0", str(path))
    node.load("acme")
    assert row(node, "acme")["state"] == "loaded"
    node.publish("one")
    assert result_of(node.plugins.command("acme", "seen", [])) == "one"
    assert node.plugins.metrics() == [("plugin_acme_seen_total", "Messages seen.", 1.0)]
    assert node.plugins.sys_topics() == {"plugins/acme/seen": "1"}
    info = node.plugins.info("acme")
    assert info["registered"]["hooks"][0]["point"] == "message.publish"
    assert info["budget"]["calls"] >= 1
    result_of(node.plugins.unload("acme"))
    assert row(node, "acme")["state"] == "unloaded"
    assert not node.hooks.lookup("message.publish")
    for wrong in (node.plugins.unload("acme"),):
        with pytest.raises(PluginError, match="not loaded"):
            result_of(wrong)


def test_settings_that_a_plugin_changes_are_those_of_its_file_still(node: Node) -> None:
    node.write("acme", COUNTING.replace("self.seen = []", "self.seen = []; config.clear()"))
    path = Path(node.plugins.info("acme")["config_file"])
    path.write_text("depth = 1\n")
    node.load("acme")
    assert node.plugins.info("acme")["config_file_differs"] is False
    path.write_text("depth = 2\n")
    assert node.plugins.info("acme")["config_file_differs"] is True


def test_one_that_is_for_one_worker_is_elsewhere_in_the_others(node: Node) -> None:
    node.write("acme", COUNTING)
    (node.dir / "acme.conf").write_text('[mqttd]\nworkers = "one"\n')
    node.plugins.first = False
    result_of(node.plugins.load("acme"))
    assert row(node, "acme")["state"] == "elsewhere"
    assert not node.hooks.lookup("message.publish")
    with pytest.raises(PluginError, match="not loaded"):
        node.plugins.command("acme", "seen", [])
    result_of(node.plugins.reload("acme"))
    assert node.plugins.info("acme")["workers"] == "one"
    node.plugins.first = True
    result_of(node.plugins.reload("acme"))
    assert row(node, "acme")["state"] == "loaded"
    result_of(node.plugins.unload("acme"))
    assert row(node, "acme")["state"] == "unloaded"


def test_a_loaded_one_is_not_loaded_twice(node: Node) -> None:
    node.write("acme", COUNTING)
    node.load("acme")
    with pytest.raises(PluginError, match="loaded already"):
        node.load("acme")


def test_what_was_edited_since_a_look_is_loaded_as_it_is_now(node: Node) -> None:
    node.write("acme", COUNTING)
    assert row(node, "acme")["version"] == "1.0"
    node.write("acme", COUNTING.replace("Messages seen.", "Edited."))
    node.load("acme")
    assert node.plugins.metrics() == [("plugin_acme_seen_total", "Edited.", 0.0)]
    result_of(node.plugins.unload("acme"))
    node.plugins.list()
    node.write("acme", COUNTING.replace("Messages seen.", "Again."))
    node.load("acme")
    assert node.plugins.metrics() == [("plugin_acme_seen_total", "Again.", 0.0)]


def test_one_that_is_missing_is_told_with_those_there_are(node: Node) -> None:
    node.write("acme", COUNTING)
    (node.dir / "broken.py").write_text("import no_such_module\n")
    (node.dir / "torn.py").write_text("def (\n")
    (node.dir / "leaving.py").write_text("import sys; sys.exit(3)\n")
    with pytest.raises(PluginError) as error:
        node.load("amce")
    text = str(error.value)
    assert "plugin 'amce' was not found; found: acme" in text
    assert "; did you mean acme?; failed: " in text
    assert "broken.py: ModuleNotFoundError: No module named 'no_such_module'" in text
    assert "torn.py: SyntaxError: " in text and "line 1" in text
    assert "leaving.py: SystemExit: 3" in text
    with pytest.raises(PluginError, match=r"^plugin 'torn' cannot be had: .*torn.py: SyntaxError"):
        node.load("torn")
    listed = row(node, "broken")
    assert listed["state"] == "failed"
    assert listed["error"] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize("operation", ["load", "unload", "reload", "info", "command"])
def test_whoever_mistypes_a_name_is_told_the_one_that_is_like_it(
    node: Node, operation: str
) -> None:
    node.write("acme", COUNTING)
    call = getattr(node.plugins, operation)
    with pytest.raises(PluginError, match="'amce' was not found; found: acme.*did you mean acme"):
        found = call("amce", *(["count", []] if operation == "command" else []))
        result_of(found)
    with pytest.raises(PluginError, match="'acme' is not loaded .mqttd-ctl plugins load acme"):
        result_of(node.plugins.unload("acme"))
    node.load("acme")
    node.plugins.handle("acme").add_command("show", lambda argv: "", "Show.")
    with pytest.raises(PluginError, match=r"no command 'shwo'; there are: .*; did you mean show\?"):
        result_of(node.plugins.command("acme", "shwo", []))


def test_a_file_that_declares_none_is_told_and_taken_once_it_does(node: Node) -> None:
    path = node.dir / "acme.py"
    path.write_text("class Plugin:\n    pass\n")
    for _ in range(2):
        with pytest.raises(PluginError) as error:
            node.load("acme")
        assert f"{path} was found, but declares no plugin; add to it: from" in str(error.value)
        assert "factory='mqttd_plugins.acme:CLASS'" in str(error.value)
        node.plugins.list()
    node.write("acme", COUNTING)
    node.plugins.list()
    assert row(node, "acme")["state"] == "unloaded"
    node.load("acme")
    assert row(node, "acme")["state"] == "loaded"


def test_a_start_is_refused_with_all_mistakes(node: Node) -> None:
    node.write("acme", COUNTING, config_schema="mqttd_plugins.acme:Nothing")
    node.start_anew("acme", "missing")
    with pytest.raises(PluginError) as error:
        node.plugins.check()
    assert "mqttd_plugins.acme:Nothing: AttributeError" in str(error.value)
    assert "plugin 'missing' was not found; found: acme" in str(error.value)


def test_two_of_one_name_are_told(node: Node) -> None:
    node.write("acme", COUNTING)
    text = (node.dir / "acme.py").read_text()
    (node.dir / "other.py").write_text(text)
    (listed,) = [entry for entry in node.plugins.list() if entry["state"] == "failed"]
    assert "declared twice" in str(listed["error"])


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_the_interfaces_is_refused(node: Node, version: int) -> None:
    node.write("acme", COUNTING, api_version=version)
    with pytest.raises(PluginError, match=f"written for version {version} of the plugin interf"):
        node.load("acme")


def test_a_missing_method_is_named(node: Node) -> None:
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config): ...
        """,
    )
    with pytest.raises(PluginError, match=r"IPlugin.*unload"):
        node.load("acme")
    assert row(node, "acme")["state"] == "failed"
    assert "unload" in str(row(node, "acme")["error"])


def test_a_module_without_its_methods_is_told_with_the_line_that_hands_it_in(node: Node) -> None:
    handed = 'handle.register_mod("acl", "acme", object())'
    node.write("acme", COUNTING.replace("self.seen = []", handed))
    with pytest.raises(PluginError) as error:
        node.load("acme")
    text = str(error.value)
    line = (node.dir / "acme.py").read_text().partition(handed)[0].count("\n") + 1
    assert "failed to implement" in text and "IAccessControl" in text and "\n" not in text
    assert text.endswith(f"({node.dir}/acme.py:{line})")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("from twisted.internet.defer import fail; return fail(OSError('down'))", "OSError: down"),
    ],
)
def test_one_that_fails_to_load_leaves_nothing(node: Node, body: str, error: str) -> None:
    node.write(
        "acme",
        f"""
        unloaded = []

        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", print)
                handle.call_every(1, print)
                handle.subscribe("#", print)
                {body}

            def unload(self):
                unloaded.append(1)
        """,
    )
    with pytest.raises(PluginError, match=error):
        node.load("acme")
    assert sys.modules["mqttd_plugins.acme"].unloaded == [1]
    assert not node.hooks.lookup("message.publish")
    assert not node.clock.getDelayedCalls()
    assert node.broker.stats()["subscriptions"] == 0
    assert error in str(row(node, "acme")["error"])


def test_a_load_that_never_ends_is_given_up(node: Node) -> None:
    node.write(
        "acme",
        """
        from twisted.internet.defer import Deferred

        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", print)
                return Deferred()

            def unload(self):
                return Deferred()
        """,
    )
    outcome: list[object] = []
    node.plugins.load("acme").addErrback(lambda failure: outcome.append(str(failure.value)))
    assert row(node, "acme")["state"] == "loading"
    with pytest.raises(PluginError, match="loading already"):
        node.load("acme")
    node.advance(21)
    assert outcome == ["plugin 'acme' was not loaded: its load did not finish within 10 s"]
    assert not node.hooks.lookup("message.publish")
    assert not node.clock.getDelayedCalls()


def test_one_that_comes_is_told_from_one_that_is_not_loaded(node: Node) -> None:
    """Who asks while the broker starts is to ask again, not to be told that it is not there."""
    node.write("acme", COUNTING)
    node.write(
        "late",
        """
        from twisted.internet.defer import Deferred

        begun = []

        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                begun.append(Deferred())
                return begun[-1]

            def unload(self):
                begun.append(Deferred())
                return begun[-1]
        """,
    )
    node.start_anew("late", "acme")
    assert node.plugins.comes("acme")  # the store is being read
    done = node.plugins.load()
    assert node.plugins.comes("late") and node.plugins.comes("acme")
    begun = sys.modules["mqttd_plugins.late"].begun
    begun[0].callback(None)
    result_of(done)
    result_of(node.plugins.unload("acme"))
    assert not node.plugins.comes("acme") and not node.plugins.comes("never")
    again = node.plugins.reload("late")
    assert node.plugins.comes("late")
    begun[1].callback(None)
    assert node.plugins.comes("late")
    sys.modules["mqttd_plugins.late"].begun[0].errback(OSError("no database"))
    assert node.plugins.comes("late")  # the old one is loaded again
    node.advance(60)
    with pytest.raises(PluginError):
        result_of(again)
    assert not node.plugins.comes("late") and row(node, "late")["state"] == "failed"
    result_of(node.plugins.unload())
    assert node.plugins.comes("acme")  # the broker ends, and may come again


def test_unloading_ends_whatever_the_plugin_does(node: Node) -> None:
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", lambda message: OK)

            def unload(self):
                raise RuntimeError("will not")
        """,
    )
    node.load("acme")
    result_of(node.plugins.unload("acme"))
    assert not node.hooks.lookup("message.publish")
    assert row(node, "acme")["state"] == "unloaded"


def test_a_coroutine_may_load(node: Node) -> None:
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            async def load(self, handle, config):
                handle.hook("message.publish", lambda message: OK)

            async def unload(self):
                pass
        """,
    )
    node.load("acme")
    assert node.hooks.lookup("message.publish")
    result_of(node.plugins.unload("acme"))


# -- reload


def test_changed_code_is_taken_at_reload(node: Node) -> None:
    body = """
    @implementer(IPlugin)
    class Plugin:
        def load(self, handle, config):
            handle.add_command("say", lambda argv: "WORD", "Says it.")

        def unload(self): ...
    """
    for word in ("one", "two", "six"):  # the same size, within one second
        node.write("acme", body.replace("WORD", word), version=word)
        result_of(node.plugins.reload("acme"))
        assert result_of(node.plugins.command("acme", "say", [])) == word
        assert row(node, "acme")["version"] == word


def test_with_a_mistake_in_the_new_code_the_old_one_stays(node: Node) -> None:
    path = node.write("acme", COUNTING)
    node.load("acme")
    good = path.read_text()
    for bad in ("import no_such_module\n" + good, good + "def (\n"):
        path.write_text(bad)
        with pytest.raises(PluginError, match="the old plugin 'acme' stays loaded"):
            result_of(node.plugins.reload("acme"))
        node.publish("still/seen")
        assert "still/seen" in result_of(node.plugins.command("acme", "seen", []))
        assert row(node, "acme")["state"] == "loaded"
    path.write_text(good)
    result_of(node.plugins.reload("acme"))
    assert result_of(node.plugins.command("acme", "seen", [])) == ""


def test_new_code_that_fails_to_load_puts_the_old_one_back(node: Node) -> None:
    path = node.write("acme", COUNTING)
    node.load("acme")
    good = path.read_text()
    line = "def load(self, handle, config):"
    path.write_text(good.replace(line, f"{line}\n        raise RuntimeError('not today')"))
    assert path.read_text() != good
    with pytest.raises(PluginError, match="'acme' is loaded again: .*not today"):
        result_of(node.plugins.reload("acme"))
    node.publish("still/seen")
    assert "still/seen" in result_of(node.plugins.command("acme", "seen", []))
    assert row(node, "acme")["state"] == "loaded"


RULES = """
from twisted.internet.defer import Deferred
from mqttd.interfaces import IAccessControl
from mqttd.types import Verdict

@implementer(IAccessControl)
class Rules:
    def init(self, opts):
        pass

    def check_acl(self, client, action, topic):
        return Verdict.ALLOW if topic.startswith("plant") else Verdict.DENY

    def reload_acl(self):
        pass

    def description(self):
        return "the plant's"

@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        self.load_rules(handle)

    def load_rules(self, handle):
        handle.register_mod("acl", "acme", Rules(), 0)

    def unload(self):
        pass
"""

SLOWLY = """
        done = Deferred()
        handle.clock.callLater(5, done.callback, None)
        return done.addCallback(lambda _: self.load_rules(handle))
"""


def may(node: Node, topic: str) -> bool:
    client = ClientInfo("a", None, "127.0.0.1", 1, "default", 5)
    return bool(node.access.authorize(client, Action("publish", 0), topic))


@pytest.mark.parametrize("fails", [False, True])
def test_while_it_is_loaded_again_its_rules_deny_and_nobody_loses_what_he_has(
    node: Node, fails: bool
) -> None:
    path = node.write("acme", RULES)
    node.load("acme")
    client = node.connect("lamp")
    client.subscribe("plant/#")
    assert may(node, "plant/1") and not may(node, "office/1")
    slowly = SLOWLY.replace("self.load_rules(handle)", "1 / 0") if fails else SLOWLY
    call = "        self.load_rules(handle)\n"
    path.write_text(path.read_text().replace(call, slowly, 1))
    reloading = node.plugins.reload("acme")
    reloading.addErrback(lambda failure: failure.trap(PluginError))
    node.settle()
    assert not may(node, "plant/1") and not may(node, "office/1")
    node.clock.advance(5)
    node.settle()
    assert row(node, "acme")["state"] == "loaded"
    assert may(node, "plant/1") and not may(node, "office/1")
    session = node.session("lamp")
    assert session is not None and list(session.subscriptions or ()) == ["plant/#"]


def test_where_neither_the_new_nor_the_old_one_loads_its_rules_deny_until_it_is_unloaded(
    node: Node,
) -> None:
    path = node.write("acme", RULES.replace("class Plugin:", "class Plugin:\n    loads = [1]"))
    node.load("acme")
    once = path.read_text().replace(
        "        self.load_rules(handle)\n",
        "        self.loads.pop()\n        self.load_rules(handle)\n",
        1,
    )
    path.write_text(once)
    result_of(node.plugins.reload("acme"))
    path.write_text(once.replace("[1]", "[]"))
    with pytest.raises(PluginError):
        result_of(node.plugins.reload("acme"))
    assert row(node, "acme")["state"] == "failed"
    assert not may(node, "plant/1")
    result_of(node.plugins.unload("acme"))
    assert may(node, "office/1")  # as without the plugin


def test_a_dependency_that_is_missing_names_its_extra() -> None:
    assert extra_of("prometheus_client") == "prometheus"
    assert extra_of("ldap3.core") == "ldap"
    assert extra_of("no_such_module") is None


def test_one_that_failed_can_be_corrected_and_loaded(node: Node) -> None:
    path = node.write("acme", COUNTING)
    good = path.read_text()
    path.write_text(good.replace("self.seen = []", "self.seen = [] + 1"))
    with pytest.raises(PluginError, match="TypeError"):
        node.load("acme")
    path.write_text(good)
    node.load("acme")
    assert row(node, "acme")["state"] == "loaded"


# -- configuration

CONFIGURED = """
import msgspec

class Settings(msgspec.Struct):
    topic: str
    interval: float = 5.0
    password: str = ""

@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        handle.add_command("config", lambda argv: repr(config))

    def unload(self): ...
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "acme.conf: object missing required field `topic`"),
        ("topic = ", "acme.conf: not valid TOML"),
        ('topic = "a"\ntopic = "b"\n', "acme.conf:2: topic: is there already, in line 1; leave"),
        ('topic = "a"\n\ninterval = "x"\n', ':3: interval = "x": expected `float`, got `str`'),
        ('topic = "a"\nintervall = 3\n', ":2: intervall: unknown key; did you mean interval?"),
        ('topic = "a"\npassword = 17\n', ":2: password = ...: expected `str`, got `int`"),
    ],
)
def test_its_configuration_is_checked_before_it_is_loaded(
    node: Node, text: str, message: str
) -> None:
    node.write("acme", CONFIGURED, config_schema="mqttd_plugins.acme:Settings")
    (node.dir / "acme.conf").write_text(text)
    with pytest.raises(PluginError) as error:
        node.load("acme")
    assert message in str(error.value)
    assert str(node.dir / "acme.conf") in str(error.value)


REQUIRED = """
import msgspec
from typing import Annotated, Literal

class Inner(msgspec.Struct):
    depth: int

class Settings(msgspec.Struct):
    topic: Annotated[str, msgspec.Meta(min_length=1)]
    many: int | None
    share: float
    on: bool
    names: list[str]
    mode: Literal["fast", "safe"]
    inner: Inner
    interval: float = 5.0

@implementer(IPlugin)
class Plugin: ...
"""


def test_what_it_needs_is_told_with_the_file_that_was_looked_for(node: Node) -> None:
    node.write("acme", REQUIRED, config_schema="mqttd_plugins.acme:Settings")
    path = node.dir / "acme.conf"
    with pytest.raises(PluginError) as error:
        node.load("acme")
    rest = 'many = 1; share = 1.0; on = true; names = [...]; mode = "fast"; [inner]'
    assert str(error.value) == (
        f"{path}: there is no such file, and it is needed: no default for `topic`; expected lines"
        f' such as: topic = "..."; {rest}'
    )
    path.write_text('topic = "a"\n')
    with pytest.raises(PluginError) as error:
        node.load("acme")
    assert str(error.value) == (
        f"{path}: object missing required field `many`; expected lines such as: {rest}"
    )


def test_its_configuration_reaches_it(node: Node) -> None:
    node.write("acme", CONFIGURED, config_schema="mqttd_plugins.acme:Settings")
    (node.dir / "acme.conf").write_text('topic = "a"\ninterval = 2\n')
    node.load("acme")
    shown = result_of(node.plugins.command("acme", "config", []))
    assert shown == "Settings(topic='a', interval=2.0, password='')"


def test_without_a_schema_it_is_a_dict(node: Node) -> None:
    node.write("acme", CONFIGURED)
    (node.dir / "acme.conf").write_text("[any]\nthing = 1\n")
    node.load("acme")
    assert result_of(node.plugins.command("acme", "config", [])) == "{'any': {'thing': 1}}"


def test_an_operator_sets_its_limits_in_the_same_file(node: Node) -> None:
    node.write("acme", CONFIGURED, config_schema="mqttd_plugins.acme:Settings")
    path = node.dir / "acme.conf"
    path.write_text(
        'topic = "a"\n[mqttd]\npolicy = "deny"\nper_call = 0.1\nerror_limit = 3\nqueue = 7\n'
    )
    budget = node.load("acme").budget
    assert (budget.policy, budget.per_call, budget.error_limit, budget.queue) == ("deny", 0.1, 3, 7)
    assert budget.per_second == 0.5  # not named: the default
    info = node.plugins.info("acme")
    assert (info["policy"], info["isolation"]) == ("deny", "none")
    path.write_text('topic = "a"\n')
    result_of(node.plugins.reload("acme"))
    assert node.plugins.handle("acme").budget.policy == "ignore"


def test_an_operator_may_put_it_into_a_process_of_its_own(node: Node) -> None:
    node.write("acme", CONFIGURED)
    (node.dir / "acme.conf").write_text('[mqttd]\nisolation = "process"\n')
    fresh = Active(node.plugins._discover().plugins["acme"])
    settings, fresh.limits = node.plugins._settings(fresh.plugin)
    assert settings == {}
    assert isinstance(fresh.factory()(), IsolatedPlugin)
    assert fresh.budget().per_call == PER_CALL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mqttd = 3", "acme.conf:1: mqttd: expected a table, [mqttd]"),
        ("[mqttd]\nper_cal = 1", ":2: mqttd.per_cal: unknown key; did you mean per_call?"),
        ("[mqttd]\nper_call = 0", ":2: mqttd.per_call = 0: expected `float` > 0"),
        ('[mqttd]\npolicy = "allow"', ':2: mqttd.policy = "allow": expected "ignore" or "deny"'),
        (
            '[mqttd]\npolicy = "denyy"',
            ':2: mqttd.policy = "denyy": expected "ignore" or "deny"; did you mean "deny"?',
        ),
    ],
)
def test_mistakes_in_its_limits_are_told(node: Node, text: str, message: str) -> None:
    node.write("acme", COUNTING)
    (node.dir / "acme.conf").write_text(text)
    with pytest.raises(PluginError) as error:
        node.load("acme")
    assert message in str(error.value)


def test_a_module_that_fails_is_logged_once_until_it_changes(node: Node) -> None:
    told: list[str] = []

    def observe(event: LogEvent) -> None:
        if event["log_level"] >= LogLevel.error:
            told.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        broken = node.dir / "broken.py"
        broken.write_text("import no_such_module\n")
        for _ in range(3):
            assert row(node, "broken")["state"] == "failed"
        broken.write_text("import no_other_module\n")
        for _ in range(3):
            assert row(node, "broken")["state"] == "failed"
    finally:
        globalLogPublisher.removeObserver(observe)
    assert told == [
        f"no plugin can be had from {broken}: ModuleNotFoundError: No module named '{name}'"
        for name in ("no_such_module", "no_other_module")
    ]


# -- start and stop


def test_what_was_loaded_is_loaded_again_at_the_next_start(node: Node) -> None:
    for name in ("one", "two", "three"):
        node.write(name, COUNTING)
    node.load("two")
    node.load("one")
    result_of(node.plugins.unload())
    assert not node.hooks.lookup("message.publish")
    node.start_anew("three")
    result_of(node.plugins.load())
    assert node.plugins.loaded() == ["three", "two", "one"]
    result_of(node.plugins.unload("two"))
    result_of(node.plugins.unload("three"))
    result_of(node.plugins.unload())
    result_of(node.start_anew("three").load())
    assert node.plugins.loaded() == ["three", "one"]


def test_one_that_merely_was_loaded_does_not_keep_the_broker_from_starting(node: Node) -> None:
    node.write("acme", COUNTING)
    path = node.write("gone", COUNTING)
    node.load("gone")
    node.load("acme")
    result_of(node.plugins.unload())
    path.unlink()
    errors: list[str] = []

    def observe(event: dict[str, object]) -> None:
        if event["log_level"] is LogLevel.error:
            errors.append(str(event.get("error")))

    globalLogPublisher.addObserver(observe)
    try:
        result_of(node.start_anew().load())
    finally:
        globalLogPublisher.removeObserver(observe)
    assert node.plugins.loaded() == ["acme"]
    assert any("plugin gone was not loaded" in error for error in errors)


def test_one_that_is_configured_and_fails_makes_the_start_fail(node: Node) -> None:
    node.write("acme", COUNTING.replace("self.seen = []", "raise OSError('no database')"))
    node.start_anew("acme").check()
    with pytest.raises(PluginError, match="no database"):
        result_of(node.plugins.load())


def test_a_folder_that_others_may_write_to_is_not_searched(node: Node) -> None:
    node.write("acme", COUNTING)
    node.dir.chmod(0o777)
    with pytest.raises(PluginError, match="chmod go-w"):
        node.plugins.list()


# -- what must not happen


def test_a_plugin_in_quarantine_is_shown_and_raises_an_alarm(node: Node) -> None:
    node.hooks.alarms = Alarms()
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", self.publish)

            def publish(self, message):
                raise ValueError("bad day")

            def unload(self): ...
        """,
    )
    node.load("acme")
    for _ in range(12):
        node.publish("a")
    listed = row(node, "acme")
    assert listed["state"] == "quarantined"
    assert "ValueError: bad day" in str(listed["error"])
    assert [alarm.name for alarm in node.hooks.alarms.active()] == ["quarantine.acme"]
    assert node.plugins.info("acme")["budget"]["errors"] == 10
    result_of(node.plugins.reload("acme"))
    assert row(node, "acme")["state"] == "loaded"
    assert not node.hooks.alarms.active()


def test_a_plugin_that_refuses_its_settings_is_told_with_their_file(node: Node) -> None:
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                raise ValueError("url: expected one")

            def unload(self): ...
        """,
    )
    file = Path(node.plugins.config.plugins.dir) / "acme.conf"
    told = f"ValueError: url: expected one.*; its settings are those of {file}"
    with pytest.raises(PluginError, match=f"{told}, which is not there$"):
        node.load("acme")
    file.write_text("")
    with pytest.raises(PluginError, match=f"{told}$"):
        node.load("acme")


def test_a_command_that_fails_tells_the_operator(node: Node) -> None:
    node.write(
        "acme",
        """
        from twisted.internet.defer import Deferred

        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.add_command("fail", lambda argv: int(argv[0]))
                handle.add_command("wait", lambda argv: Deferred())

            def unload(self): ...
        """,
    )
    node.load("acme")
    with pytest.raises(PluginError, match="ValueError: invalid literal"):
        result_of(node.plugins.command("acme", "fail", ["x"]))
    with pytest.raises(PluginError, match="no command 'fial'; there are: fail, wait"):
        node.plugins.command("acme", "fial", [])
    outcome: list[str] = []
    waiting: Deferred[str] = node.plugins.command("acme", "wait", [])
    waiting.addErrback(lambda failure: outcome.append(str(failure.value)))
    node.advance(11)
    assert outcome == ["its command wait did not finish within 10 s"]


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_a_thousand_times_loaded_and_unloaded_nothing_grows(node: Node, tmp_path: Path) -> None:
    node.write(
        "acme",
        """
        @implementer(IPlugin)
        class Plugin:
            def load(self, handle, config):
                handle.hook("message.publish", self.publish)
                handle.hook("client.connected", self.connected)
                handle.call_every(60, self.beat)
                handle.call_later(60, self.beat)
                handle.subscribe("a/#", self.publish)
                handle.add_metric("m", "", lambda: 0)
                handle.add_command("c", lambda argv: "")
                handle.in_thread(self.beat)

            def publish(self, message): ...
            def connected(self, client, acc): ...
            def beat(self): ...
            def unload(self): ...
        """,
    )
    node.start_anew("acme")  # what is configured is not written to loaded_plugins, with an fsync
    alice = node.connect("alice")
    alice.subscribe("a/#")

    def cycle() -> None:
        node.load("acme")
        result_of(node.plugins.unload("acme"))
        node.settle()

    def held() -> tuple[int, ...]:
        gc.collect()
        return (
            len(node.clock.getDelayedCalls()),
            node.broker.stats()["subscriptions"],
            len(node.hooks.budgets()),
            len(node.broker.points),
            len(gc.get_objects()),
        )

    for _ in range(20):
        cycle()
    before = held()
    for _ in range(1000):
        cycle()
    after = held()
    assert after[:-1] == before[:-1]
    # Caches and the like grow once, by a few hundred; one object left by each cycle would be 1,000.
    assert after[-1] - before[-1] < 500
    node.publish("a/b", b"still there")
    assert [message.payload for message in alice.messages()] == [b"still there"]


def test_code_that_two_plugins_share_stays_while_one_of_them_uses_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = node.directory / "shared"
    shared.mkdir()
    (shared / "acme_shared.py").write_text(
        "from zope.interface import implementer\n"
        "from mqttd.interfaces import IPlugin\n"
        "@implementer(IPlugin)\n"
        "class Plugin:\n"
        "    def load(self, handle, config): ...\n"
        "    def unload(self): ...\n"
    )
    monkeypatch.syspath_prepend(shared)
    for name in ("one", "two"):
        node.write(name, "", factory="acme_shared:Plugin")
        node.load(name)
    module = sys.modules["acme_shared"]
    result_of(node.plugins.unload("one"))
    assert sys.modules["acme_shared"] is module
    result_of(node.plugins.unload("two"))
    assert "acme_shared" not in sys.modules


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('password = "x"', "password"),
        ('[db]\nbind_password = "x"', "db.bind_password"),
        ('[[servers]]\nurl = "postgres://mqttd:geheim@db/x"', "servers.url"),
        ('urls = ["redis://:x@h", "redis://a:b@h"]', "urls"),
        ('password = ""\npassword_file = "p"\nurl = "https://h/a:b@c"', ""),
        ('topic = "a"', ""),
    ],
)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_file_with_a_secret_that_everybody_may_read_is_warned_about(
    tmp_path: Path, text: str, named: str, mode: int
) -> None:
    path = tmp_path / "acme.conf"
    path.write_text(text)
    path.chmod(mode)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_settings(str(path), None)
    warned = [str(one.message) for one in told if one.category is PluginFileWarning]
    if named and mode == 0o644:
        assert warned == [f"{path}: mode 0644 lets everybody read {named}; expected 0600"]
    else:
        assert not warned


def test_plugins_are_looked_for_while_a_thread_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark's requests failed with 500 while a broker that had started loaded its archive.
    class Importing:
        @property
        def __providedBy__(self) -> object:
            monkeypatch.setitem(sys.modules, "mqttd_plugins.meanwhile", ModuleType("meanwhile"))
            raise AttributeError

    module = ModuleType("mqttd_plugins.importing")
    module.thing = Importing()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mqttd_plugins.importing", module)
    discover()
    assert "mqttd_plugins.meanwhile" in sys.modules
