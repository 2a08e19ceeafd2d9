"""The dashboard in a browser: what an operator does with it, by keyboard too.

Beside it `test_page.py`: who gets in at its address, and what others cannot do there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.admin.ctl.client import Client, CtlError
from mqttd.admin.http.api_users import add_user, change_role
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.chromium import Chromium
from tests.support.client import RawClient
from tests.support.dashboard import PAGES, Dashboard, page_port

PASSWORD = "correct horse"
ACL = '{deny, {client, "thief"}, publish, ["safe/#"]}.\n{allow, all}.\n'


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("dashboard")
    made = start_broker(
        folder,
        acl=ACL,
        admin={"page": {"enabled": True, "bind": "127.0.0.1:0"}},
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def users(broker: Broker, browser: Chromium) -> str:
    """The first administrator, made by the link in the log; and one who only looks."""
    assert broker.directory is not None
    link = re.search(r"http://127\.0\.0\.1:\d+(/#first=\S+)", broker.output)
    assert link is not None
    board = Dashboard(browser, broker, link[1])
    board.shows("First administrator")
    assert board.evaluate("location.hash") == ""
    form = "First administrator"
    board.fill("First administrator", username="ann", password=PASSWORD, repeated="another")
    board.shows("two different passwords")
    board.fill(form, username="ann", password=PASSWORD, repeated=PASSWORD)
    board.wait("document.getElementById('who').textContent === 'ann (administrator)'")
    board.wait("document.querySelectorAll('live-chart canvas').length === 6")
    assert board.evaluate("document.cookie") == ""
    board.click("Log out", "header")
    board.shows("You are logged out.")
    path = broker.directory / "data/api-users.json"
    add_user(str(path), "vic", "viewer", PASSWORD, None)
    browser.console.clear()  # a browser reports each answer from 400
    return "ann"


@pytest.fixture
def board(browser: Chromium, broker: Broker, users: str) -> Iterator[Dashboard]:
    """A tab that ann has logged in at."""
    made = Dashboard(browser, broker)
    made.wait("!!document.querySelector('form[aria-label=\"Log in\"], .tile')")
    if made.evaluate("document.getElementById('who').textContent") != "ann (administrator)":
        if not made.evaluate("document.body.classList.contains('out')"):
            made.click("Log out", "header")
        made.enter("ann", PASSWORD)
    browser.console.clear()  # that nobody was logged in
    yield made
    browser.console.clear()
    made.browser.call("Target.closeTarget", targetId=made.page.target)


@pytest.fixture
def control(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data" / "mqttd.sock"))


def test_a_wrong_password_and_a_role_without_rights(
    browser: Chromium, broker: Broker, board: Dashboard
) -> None:
    client = RawClient(broker.port, mq.V5).connect("looked-at")
    board.click("Log out", "header")
    board.log_in("vic", "wrong password")
    board.wait("document.getElementById('told').textContent.includes('wrong password')")
    board.enter("vic", PASSWORD)
    assert not board.evaluate(
        "[...document.querySelectorAll('#pages a')].some(a => a.hash === '#audit')"
    )
    board.go("clients/looked-at")
    board.shows("tcp:default")
    assert not board.evaluate("!!document.getElementById('kick')")
    refused = board.evaluate(
        "import('/page/api.js').then(api => api.ask('DELETE', '/clients/looked-at'))"
        ".then(() => 0, error => error.status)"
    )
    assert refused == 403
    client.ping()
    client.close()


def test_who_has_another_role_is_shown_no_more(
    browser: Chromium, broker: Broker, board: Dashboard
) -> None:
    assert broker.directory is not None
    path = str(broker.directory / "data/api-users.json")
    add_user(path, "eve", "operator", PASSWORD, None)
    board.click("Log out", "header")
    board.enter("eve", PASSWORD)
    board.go("overview")
    board.wait("document.getElementById('state').textContent === 'Live'")
    change_role(path, "eve", "events", None)
    board.wait("!!document.querySelector('form[aria-label=\"Log in\"]')")
    board.shows("your log-in has ended")
    board.enter("ann", PASSWORD)


@pytest.mark.parametrize("word", ["__proto__", "constructor", "roles/__proto__", "access/toString"])
def test_a_word_that_is_no_page_shows_another_one(
    board: Dashboard, browser: Chromium, word: str
) -> None:
    board.go("bans")
    board.go(word)
    board.wait("!!document.querySelector('#pages a[aria-current]')")
    assert "Not shown" not in board.evaluate("document.querySelector('main').innerText")
    assert browser.console == []


def test_clients_appear_as_they_are_called_and_are_kicked(
    broker: Broker, board: Dashboard, browser: Chromium
) -> None:
    """Whatever a client calls itself is text: markup, what turns writing round, a long name."""
    board.go("clients")
    names = ["<img src=x onerror=alert(1)>", "a\u202eb", "x" * 200, "a/b?c#d%2e"]
    clients = {name: RawClient(broker.port, mq.V5).connect(name) for name in names}
    for name in names:
        shown = name.replace("\u202e", "\\u{202e}")
        board.wait(
            "[...document.querySelectorAll('td .name')].some(one =>"
            f" one.textContent === {json.dumps(shown)})"
        )
    assert board.evaluate("document.querySelectorAll('main img').length") == 0
    assert board.evaluate("document.documentElement.scrollWidth <= innerWidth")
    board.click("a/b?c#d%2e")
    board.wait("document.querySelector('main h1')?.textContent === 'a/b?c#d%2e'")
    board.click("Kick")
    clients["a/b?c#d%2e"].expect_close(0x98)
    board.shows("There is no client of this id")
    for client in clients.values():
        client.close()
    assert not [line for line in browser.console if "Content Security Policy" in line]


def test_many_clients_come_by_pages_and_in_their_order(broker: Broker, board: Dashboard) -> None:
    clients = [RawClient(broker.port, mq.V5).connect(f"many-{n:03}") for n in range(120)]
    for at, client in enumerate(clients[:3]):
        for n in range(at + 1):
            client.subscribe(f"f/{n}")
    board.go("clients")
    board.fill("Filter", prefix="many-")
    first = "document.querySelector('tbody .name')?.textContent"
    board.wait(f"{first} === 'many-000' && document.querySelectorAll('tbody tr').length === 50")
    board.click("Next")
    board.wait(f"{first} === 'many-050'")
    board.click("Next")
    board.wait(f"{first} === 'many-100' && document.querySelectorAll('tbody tr').length === 20")
    board.click("Previous")
    board.wait(f"{first} === 'many-050'")
    board.click("Subscriptions", "thead")
    board.wait(f"{first} === 'many-002'")
    for client in clients:
        client.close()


def test_an_answer_that_comes_after_a_later_one_is_not_drawn(
    broker: Broker, board: Dashboard
) -> None:
    clients = [RawClient(broker.port, mq.V5).connect(f"late-{n}") for n in range(3)]
    clients[2].subscribe("f")
    board.go("clients")
    board.fill("Filter", prefix="late-")
    first = "document.querySelector('tbody .name')?.textContent"
    board.wait(f"{first} === 'late-0' && document.querySelectorAll('tbody tr').length === 3")
    board.evaluate(
        """(() => {
            const known = window.fetch, let_go = new Promise((go) => { window.go = go; });
            window.held = window.read = 0;
            window.fetch = async (path, ...more) => {
                const answer = await known(path, ...more);
                if (!String(path).includes("sort=username")) return answer;
                window.held++;
                await let_go;
                return { ok: true, headers: answer.headers,
                         json: async () => { window.read++; return answer.json(); } };
            };
        })()"""
    )
    board.click("User", "thead")
    board.wait("window.held > 0")
    board.click("Subscriptions", "thead")
    board.wait(f"{first} === 'late-2'")
    board.evaluate("window.go()")
    board.wait("window.read === window.held")
    assert board.evaluate(f"new Promise((done) => setTimeout(() => done({first})))") == "late-2"
    for client in clients:
        client.close()


def test_a_plugin_is_loaded_watched_and_set(broker: Broker, board: Dashboard) -> None:
    board.go("plugins")
    board.click("Load presence")
    board.shows("presence was loaded.")
    board.go("plugins/presence")
    board.shows("Longest call")
    calls = (
        "[...document.querySelectorAll('dt')].find(one => one.textContent === 'Calls')"
        "?.nextSibling.textContent"
    )
    client = RawClient(broker.port, mq.V5).connect("counted")
    board.wait(f"Number({calls}) > 0")
    client.close()
    board.go("plugins/trace")
    board.fill("Settings", minutes=7)
    board.shows("Written; in force when the plugin is loaded anew.")
    assert broker.directory is not None
    assert (broker.directory / "etc/plugins/trace.conf").read_text() == "minutes = 7\n"
    board.fill("Settings", minutes=-1)
    board.wait("document.getElementById('told').textContent.includes('minutes')")
    board.go("plugins/presence")
    board.click("Unload presence")
    board.click("Unload", "dialog")
    board.shows("presence was unloaded.")


def test_a_denial_is_explained_and_a_lost_message_found(broker: Broker, board: Dashboard) -> None:
    thief = RawClient(broker.port, mq.V5).connect("thief")
    thief.publish("safe/door", b"open", 1)
    board.go("access/explain")
    board.fill("Explain", client_id="thief", action="publish", topic="safe/door")
    board.shows("Denied")
    board.shows('{deny, {client, "thief"}, publish, ["safe/#"]}')
    board.go("why")
    board.fill("Find", topic="safe/#", lost=True)
    board.wait(
        "[...document.querySelectorAll('td .badge')].some(one => one.textContent === 'denied')"
    )
    board.evaluate("document.querySelector('td a[href^=\"#why/\"]').click()")
    board.shows("Step by step")
    board.wait("document.querySelector('main h1')?.textContent === 'safe/door'")
    board.shows("thief")
    thief.close()


def test_topics_publish_and_what_is_retained(broker: Broker, board: Dashboard) -> None:
    client = RawClient(broker.port, mq.V5).connect("reader")
    client.subscribe("plant/+/heat", qos=1)
    board.go("topics")
    markup = '{"a": "<script>"}'
    board.fill("Publish", topic="plant/<b>/heat", payload=markup, qos="1", retain=True)
    board.shows("Published: one subscriber gets it.")
    assert client.message(topic="plant/<b>/heat").payload == markup.encode()
    board.fill("Publish", topic="raw", payload="ff 00", kind="hex", retain=True, qos="0")
    board.shows("Published: 0 subscribers get it.")
    board.go("retained")
    board.click("Show plant/<b>/heat")
    board.shows('"a": "<script>"')
    board.click("Show raw")
    board.shows("ff 00")
    board.go("subscriptions")
    board.fill("Who gets a topic", topic="plant/x/heat")
    board.shows("1 would get it")
    client.close()


def test_rates_of_topics_are_measured_when_they_are_asked_for(
    broker: Broker, board: Dashboard
) -> None:
    sender = RawClient(broker.port).connect("meter")
    board.go("topics")
    board.click("Measure rates for two seconds")
    while not board.evaluate("document.querySelector('main').innerText.includes('/s')"):
        sender.publish("rates/kitchen", b"1", qos=1)
    sender.close()
    assert "kitchen" in board.evaluate("document.querySelector('main').innerText")


def test_a_configuration_is_planned_and_applied_and_an_alarm_taken_back(
    broker: Broker, board: Dashboard, control: Client
) -> None:
    assert broker.directory is not None
    path = broker.directory / "etc/mqttd.conf"
    before = path.read_text()

    def in_force() -> str:
        keys = control.get("/config")["keys"]
        return str(next(key["value"] for key in keys if key["key"] == "mqtt.max_topic_levels"))

    path.write_text(before + "\n[mqtt]\nmax_topic_levels = 99\n")
    rules = broker.directory / "etc/acl.conf"
    rules.write_text(rules.read_text() + '{deny, {user, "nobody"}}.\n')
    board.go("config")
    board.shows("The file differs from what is in force in one key")
    board.click("Plan")
    board.shows("What the file would change")
    board.shows("rules: 1 added")
    board.shows('+ {deny, {user, "nobody"}}')
    assert in_force() == "256"
    board.click("Apply")
    board.shows("The configuration was applied.")
    assert in_force() == "99"
    path.write_text(before + "\n[mqtt]\nmax_topic_levels = many\n")
    board.go("alarms")
    with pytest.raises(CtlError):
        control.request("POST", "/config/apply", {})
    board.wait("document.querySelector('#pages .count')?.textContent === '1'")
    board.click("Clear configuration")
    board.wait("!document.querySelector('#pages .count')")
    path.write_text(before)
    control.request("POST", "/config/apply", {"confirmed": True})


def test_bans_users_and_the_log(broker: Broker, board: Dashboard) -> None:
    client = RawClient(broker.port, mq.V5).connect("unwanted")
    board.go("bans")
    board.fill("Ban", kind="client_id", value="unwanted", reason="noise")
    client.expect_close(0x98)
    board.click("Lift the ban of unwanted")
    board.wait("!document.querySelector('td .name')")
    client.close()
    board.go("users")
    board.fill("Add a user", username="bob", password="builder")
    board.shows("Added bob.")
    board.fill("Add who may use the page", name="robot", role="viewer")
    board.shows("The token of robot, shown this once")
    board.click("Delete robot")
    board.click("Delete", "dialog")
    board.wait("!document.body.innerText.includes('Delete robot')")
    board.go("log")
    board.wait("/unwanted/.test(document.querySelector('pre.log')?.textContent)")


def test_a_role_is_edited_and_a_client_is_revoked(broker: Broker, board: Dashboard) -> None:
    board.go("users")
    board.fill("Add a user", username="carol", password="singing")
    board.shows("Added carol.")
    client = RawClient(broker.port, mq.V5).connect("c-1", username="carol", password=b"singing")
    client.subscribe("safe/door", qos=1)
    board.go("roles/roles")
    board.fill("Put a role", name="guest", rules="{allow, nobody}.")
    board.wait("document.getElementById('told').textContent.includes('guest')")
    rules = '{allow, all, subscribe, ["safe/#"]}.'
    board.fill("Put a role", name="guest", rules=rules, text="for visitors")
    board.wait("document.querySelector('main h2')?.textContent === 'Role guest'")
    board.go("roles/groups")
    board.fill("Put a group", name="visitors", roles="guest")
    board.wait("document.querySelector('main h2')?.textContent === 'Group visitors'")
    board.go("users")
    board.click("carol")
    board.fill("Change the user", groups="visitors")
    board.shows("Saved carol; it is in force.")
    board.shows("safe/door")
    board.evaluate("location.hash = 'roles/roles/guest'")
    board.fill("Change the role", rules=f'{{deny, all, subscribe, ["safe/door"]}}.\n{rules}')
    board.shows("Saved guest; it is in force.")
    board.shows("visitors")
    board.go("roles/users/carol")
    board.wait(
        "[...document.querySelectorAll('td .name')].some(one => one.textContent === 'c-1')"
        " && !document.querySelector('main').innerText.includes('safe/door')"
    )
    board.fill("Change the user", disabled=True)
    client.expect_close(0x98)
    board.wait("document.querySelector('td .badge')?.textContent !== 'connected'")
    board.click("Delete carol")
    board.click("Delete", "dialog")
    board.wait("location.hash === '#roles/users'")
    client.close()


def test_a_node_is_drained_and_taken_back(broker: Broker, board: Dashboard) -> None:
    clients = [RawClient(broker.port, mq.V5).connect(f"guest-{n}") for n in range(12)]
    board.go("drain")
    board.shows("This node serves clients.")
    form = "Drain this node"
    board.fill(form, rate=2, to="other:1883", exit=False)
    board.click("Cancel", "dialog")
    board.fill(form, rate=2, to="other:1883", exit=False)
    board.click("Drain", "dialog")
    assert clients[0].wait_for(mq.DISCONNECT).reason == 0x9C
    board.wait("document.querySelector('main .badge')?.textContent === 'draining'")
    board.shows("other:1883")
    RawClient(broker.port, mq.V5).connect("late", reason=0x9C).close()
    board.click("Cancel", "main")
    board.shows("Clients are let in again")
    clients[-1].ping()
    board.fill(form, rate=1000, to="", exit=False)
    board.click("Drain", "dialog")
    board.wait("document.querySelector('main .badge')?.textContent === 'nobody is left'")
    board.click("Cancel", "main")
    board.shows("This node serves clients.")
    for client in clients:
        client.close()
    RawClient(broker.port, mq.V5).connect("back").close()


def test_it_is_used_by_the_keyboard_alone(board: Dashboard) -> None:
    """First the way past the menu; a dialog keeps the focus and lets it go where it was."""
    board.go("plugins/spark")
    board.page.call("Page.bringToFront")
    board.sized(1280, 800)
    focused = "document.activeElement.textContent.trim()"
    board.evaluate("document.querySelector('.skip').focus()")
    board.press("Tab")
    assert board.evaluate(focused) == "mqttd"
    board.press("Tab")
    assert board.evaluate(focused) == "Overview"
    board.press("Tab")
    board.press("Enter")
    board.wait(
        "location.hash === '#clients'"
        " && document.querySelector('main h1')?.textContent === 'Clients'"
    )
    board.wait("document.activeElement.id === 'main'")
    board.go("retained")
    board.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(one => one.textContent.startsWith('Forget these')).focus()"
    )
    board.press("Enter")
    board.wait("!!document.querySelector('dialog[open]')")
    for _ in range(6):
        board.press("Tab")
        assert board.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    board.press("Escape")
    board.wait("!document.querySelector('dialog')")
    board.wait("document.activeElement.textContent.startsWith('Forget these')")
    board.sized(390, 800, True)
    board.evaluate("document.getElementById('menu').focus()")
    board.press("Enter")
    board.wait("document.activeElement.closest('#pages') !== null")
    board.press("Escape")
    board.wait("document.getElementById('menu').getAttribute('aria-expanded') === 'false'")


@pytest.mark.timeout(300)
def test_axe_finds_nothing_serious_on_any_page(
    broker: Broker, board: Dashboard, control: Client
) -> None:
    """Names of controls, contrasts in both colours, order, roles."""
    control.request("POST", "/plugins/spark/load")
    client = RawClient(broker.port, mq.V5).connect("axe")
    client.subscribe("axe/#", qos=1)
    client.publish("axe/t", b"x", 1, retain=True)
    found: dict[str, list[str]] = {}
    for colours in ("light", "dark"):
        board.dyed(colours)
        for name in (*PAGES, "clients/axe"):
            board.go(name)
            if faults := board.faults():
                found[f"{name}, {colours}"] = faults
    board.click("Ban …")
    board.wait("!!document.querySelector('dialog[open]')")
    if faults := board.faults():
        found["a dialog"] = faults
    board.press("Escape")
    board.sized(390, 800, True)
    for name in PAGES:
        board.go(name)
        if not board.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            found[f"{name}, on a phone"] = ["is wider than its screen"]
    client.close()
    assert found == {}


def test_the_page_says_when_the_broker_is_away_and_goes_on(
    browser: Chromium, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    add_user(str(tmp_path / "data/api-users.json"), "ann", "administrator", PASSWORD, None)
    admin = {"page": {"enabled": True, "bind": "127.0.0.1:0"}}
    broker = start_broker(tmp_path, admin=admin)
    try:
        board = Dashboard(browser, broker)
        board.enter("ann", PASSWORD)
        board.go("clients")
        board.wait("document.getElementById('state').textContent === 'Live'")
        admin["page"]["bind"] = f"127.0.0.1:{page_port(broker)}"
        broker.stop()
        board.shows("Connection lost")
        broker = start_broker(tmp_path, admin=admin)
        board.shows("The broker was away")
        board.enter("ann", PASSWORD)
        board.wait("document.querySelector('main h1')?.textContent === 'Clients'")
        client = RawClient(broker.port, mq.V5).connect("after")
        board.shows("after")
        client.close()
    finally:
        broker.stop()
        browser.console.clear()
