"""A copy of this checkout without the account: python -m benchmarks.unweighed DIR

    python -m benchmarks.unweighed build/unweighed       copy, and take the account out of the way
    cd build/unweighed && scripts/venv                   its own .venv, compiled
    python -m benchmarks --against none --mqttd unweighed=build/unweighed --only p2p-q1 --rounds 10

The difference of the two rows is what the account costs a delivery. What is taken out is what a
delivery at QoS 1 pays: charged when it goes out, given back when it is acknowledged, and the look
at the budget after each turn. Such a broker keeps to no budget: it is there to be measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["CUTS", "main"]

_ROOT: Final = Path(__file__).parent.parent

#: File, and what stands there -> what stands there instead.
CUTS: Final[dict[str, dict[str, str]]] = {
    "mqttd/session/sending.py": {"        self.fly(INFLIGHT + size)\n": ""},
    "mqttd/session/state.py": {
        "        self.fly(flight_weight(entry))\n": "",
        "        if isinstance(entry, bytes):\n"
        "            self.fly(-INFLIGHT - len(entry))\n"
        "        else:\n"
        "            self.fly(-flight_weight(entry))\n": "",
    },
    "mqttd/broker/broker.py": {
        "        if self.memory.budget:\n            self.memory.check()\n": "",
    },
}


def main(arguments: Sequence[str]) -> int:
    """Make the copy of what is committed."""
    if len(arguments) != 1:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    target = Path(arguments[0])
    target.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=_ROOT, check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    for name, cuts in CUTS.items():
        path = target / name
        source = path.read_text("utf-8")
        for before, after in cuts.items():
            if source.count(before) != 1:
                print(f"{name}: not once there: {before.strip()}", file=sys.stderr)
                return 1
            source = source.replace(before, after)
        path.write_text(source, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
