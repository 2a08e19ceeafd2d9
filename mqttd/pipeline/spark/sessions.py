"""Spark sessions that know the data source `mqttd`: on a laptop, a cluster, in a notebook.

    session(name) --> SparkSession --register--> + data source (by value, for the planner)
                                                 + mqttd.zip (for the executors)

Promise: whether mqttd is installed on every machine, comes by ``--py-files``, or is only in the
notebook's environment makes no difference. Spark Connect brings what is added to executors of
batches alone: for streams they must have mqttd when they start.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

__all__ = ["NoJava", "check_java", "register", "session", "write_package"]

#: The oldest Java that Spark 4 runs on.
JAVA: Final = 17

#: What the executors need of the package.
PARTS: Final = ("__init__.py", "_pure.py", "checksum.py", "hints.py", "printable.py", "codec",
                "pipeline")  # fmt: skip


class NoJava(RuntimeError):
    """Spark cannot start here; the text says what to install."""


def check_java() -> None:
    """Raise NoJava unless there is a `java` that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java: str | None = os.path.join(home, "bin", "java") if home else None
    if java is None or not os.access(java, os.X_OK):
        java = shutil.which("java")
    if java is None:
        raise NoJava(
            "Spark needs Java 17: install it (Debian: apt install default-jre-headless) or set"
            " JAVA_HOME"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace")
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is not None and int(found[1]) < JAVA:
        raise NoJava(
            f"Spark needs Java {JAVA} or later, and {java} is Java {found[1]}: install it (Debian:"
            " apt install default-jre-headless) or set JAVA_HOME"
        )


def session(name: str = "mqttd", master: str | None = None, **conf: str) -> Any:
    """The SparkSession that is there, or a new one; `register` is still to be called.

    A new one on this machine shuffles into as many partitions as it has cores.

    :param master: such as ``local[2]``; by default what spark-submit says, else ``local[*]``.
    :param conf: further settings, dots written as two underscores (``spark__ui__enabled``).
    :raises NoJava: there is no Java to run it.
    """
    check_java()
    from pyspark.sql import SparkSession

    # Workers run the driver's Python, not the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    submitted = os.environ.get("PYSPARK_GATEWAY_PORT") is not None
    if master is None and not submitted and "SPARK_REMOTE" not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # By default Spark would listen on the machine's outside address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            if SparkSession.getActiveSession() is None:
                # By default a shuffle has 200 tasks, which is a minute for a first count.
                builder = builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    return builder.getOrCreate()


def register(spark: Any) -> Any:
    """Make the format `mqttd` known to a session, and bring the code to its executors.

    :return: the session.
    :raises RuntimeError: a pyspark that has not what is needed.
    """
    import pyspark
    from pyspark import cloudpickle

    from mqttd.pipeline.spark import data_source, plain

    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if not (4, 2) <= found < (5, 0):
        raise RuntimeError(
            f"mqttd needs pyspark from 4.2 up to, but not including, 5; this is"
            f" {pyspark.__version__}: pip install 'mqttd[spark]'"
        )
    package = Path(sys.modules["mqttd"].__file__ or "").parent
    made = data_source.MqttdDataSource
    made.search = (str(package.parent),)
    archive = _archive(package)
    if hasattr(spark, "addArtifacts") and not hasattr(spark, "_jsparkSession"):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)
        made.cores = spark.sparkContext.defaultParallelism
    by_value = (data_source, plain)
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spark.dataSource.register(made)
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return spark


@functools.cache
def _archive(package: Path) -> str:
    """A zip of what executors need, made once; if the package is in one already, that."""
    inside = package.parent
    if inside.is_file():
        return str(inside)
    folder = tempfile.mkdtemp(prefix="mqttd-")
    return write_package(os.path.join(folder, "mqttd.zip"), package)


def write_package(path: str, package: Path | None = None) -> str:
    """Write the zip for ``--py-files`` to `path`, which is returned."""
    if package is None:
        package = Path(sys.modules["mqttd"].__file__ or "").parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in PARTS:
            source = package / part
            files = [source] if source.is_file() else sorted(source.rglob("*.py"))
            for file in files:
                archive.write(file, f"mqttd/{file.relative_to(package)}")
    return path
