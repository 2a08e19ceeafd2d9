"""How a stream's reader learns that its query has ended.

Spark ends the process that plans a query's batches with SIGTERM, in the middle of whatever it does
then: without this `stop` of the reader would be called only where the driver has died, and a group
would be taken for one that reads on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

__all__ = ["Ending"]

#: The module that Spark runs in that process.
RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class Ending:
    """Has SIGTERM unwind what is under way, if this process is Spark's; then `stop` is called."""

    def __init__(self) -> None:
        self._told = False
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if (
            spec is not None
            and spec.name == RUNNER
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        if not self._told:
            self._told = True
            sys.exit(128 + number)

    def leave(self) -> None:
        """All is done: end the process, where it was told to; nobody is there to be told why."""
        if self._told:
            sys.stderr.flush()
            os._exit(0)
