"""`python -m mqttd`, and the program `mqttd`: the broker in the foreground.

The same as ``twistd --nodaemon --pidfile= mqttd``, for those who know no twistd; its options are
those behind that word: ``--config FILE``, ``--check-config``, ``--version``, ``--help``.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the broker until a signal ends it."""
    from twisted.scripts.twistd import run

    from mqttd.options import Options

    Options.called = "mqttd"
    # The lock on the data directory tells a second broker, more clearly than a pid file.
    given = ["--help" if each == "-h" else each for each in sys.argv[1:]]  # twistd has no -h
    sys.argv[:] = ["twistd", "--nodaemon", "--pidfile=", "mqttd", *given]
    run()


if __name__ == "__main__":
    main()
