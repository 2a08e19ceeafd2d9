"""twistd's drop-in: it names the service and costs nothing until that is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_listing_the_plugins_imports_nothing_of_mqttd() -> None:
    program = (
        "import sys; from twisted.plugins import mqttd_plugin as plugin;"
        "print(plugin.mqttd.tapname, plugin.mqttd.module);"
        "print([name for name in sys.modules if name.split('.')[0] == 'mqttd'])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert output == ["mqttd mqttd.twistd", "[]"]


def test_twisted_stays_the_owner_of_its_folders() -> None:
    assert not list((ROOT / "twisted").rglob("__init__.py"))
