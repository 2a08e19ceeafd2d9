"""What comes while a reload is under way: the end of the broker, and SIGHUP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.testing import MemoryReactorClock

from mqttd.config.load import load
from mqttd.reload import Reload, ReloadError
from mqttd.service import MqttdService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MqttdService]:
    file = tmp_path / "mqttd.conf"
    file.write_text(f'node.data_dir = "{tmp_path}/data"\nlistener.tcp.x.bind = "127.0.0.1:0"\n')
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    made = MqttdService(load(str(file), {}), MemoryReactorClock())
    yield made
    made.access.close()
    made.engine.close_all()
    made.lock.close()


def at_once(work: Iterator[None]) -> Deferred[None]:
    for _ in work:
        pass
    return succeed(None)


def test_a_reload_under_way_does_nothing_once_the_broker_ends(service: MqttdService) -> None:
    """It would begin anew what has been stopped, without the plugins that have gone."""
    checked: Deferred[Any] = Deferred()
    reload = Reload(service, lambda *call: checked, at_once)
    before = service.config
    path = Path(before.path)
    path.write_text(f'{path.read_text()}listener.tcp.y.bind = "127.0.0.1:0"\n')
    found: list[Any] = []
    reload.run(confirmed=True).addBoth(found.append)
    service.broker.stop()
    checked.callback(service.access)
    assert found[0].check(ReloadError), found
    assert "the broker ends; nothing was changed" in str(found[0].value)
    assert set(service.doors.doors) == {"tcp:x"}
    assert service.config is before


def test_sighup_while_a_reload_is_under_way_is_one_more(service: MqttdService) -> None:
    """Files may have changed since they were read; it was refused."""
    checks: list[Deferred[Any]] = []

    def in_thread(*call: Any) -> Deferred[Any]:
        checks.append(Deferred())
        return checks[-1]

    reload = Reload(service, in_thread, at_once)
    path = Path(service.config.path)
    reload.hang_up()
    path.write_text(f'{path.read_text()}sys.interval = "61s"\n')
    reload.hang_up()
    reload.hang_up()
    assert len(checks) == 1
    checks[0].callback(service.access)
    assert len(checks) == 2
    checks[1].callback(service.access)
    assert len(checks) == 2
    assert "sys.interval" in service.config.given


def test_a_file_of_users_that_counts_again_ends_the_alarm_of_the_reload_it_refused(
    service: MqttdService,
) -> None:
    """Without one more reload, unless something waits for that."""
    service.reload = Reload(service, maybeDeferred, at_once)
    path, users = Path(service.config.path), Path(service.config.auth.username.file)
    text = path.read_text()

    def refused() -> None:
        users.write_text("no line of users\n")
        found: list[Any] = []
        service.reload.run().addBoth(found.append)
        assert "users.conf:1" in str(found[0].value)
        assert alarms() == ["configuration"]

    def mended() -> list[str]:
        users.write_text("")
        service.reports.access_event("user file taken again", {"module": "username"})
        return alarms()

    def alarms() -> list[str]:
        return [alarm.name for alarm in service.broker.alarms.active()]

    refused()
    assert mended() == []
    refused()
    path.write_text(f"{text}mqtt.max_qos = 1\n")
    assert mended() == ["configuration"]
    path.write_text(f"{text}mqtt.max_quos = 1\n")
    assert mended() == ["configuration"]
    path.write_text(text)
    assert mended() == []


def test_rules_and_certificates_that_are_read_again_end_it_as_well(service: MqttdService) -> None:
    service.reload = service.control.parts.reload = Reload(service, maybeDeferred, at_once)
    path = Path(service.config.acl.file)
    path.write_text("{alow, all}.\n{deny, al}.\n")
    found: list[Any] = []
    service.reload.run().addBoth(found.append)
    assert "acl.conf:1:2: " in str(found[0].value) and "acl.conf:2:8: " in str(found[0].value)
    assert "\n" not in str(found[0].value)
    path.write_text("{allow, all}.\n")
    service.control.parts.files_taken()
    assert service.broker.alarms.active() == []
