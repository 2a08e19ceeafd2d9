"""A Spark standalone cluster here: a master, two workers, and nowhere but at the driver's an mqttd.

The archive pipeline is submitted with mqttd in a zip and reads through the pull endpoint of a real
broker, one executor is killed in the middle, and the table is the log row for row.
Five JVMs take two minutes: only with MQTTD_LONG=1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqttd
from mqttd.pipeline.spark.sessions import _archive
from tests.integration.test_events import everything, start
from tests.support.needs import missing
from tests.support.numbered import Publisher
from tests.support.spark import spark_marks
from tests.support.waiting import until

pytestmark = [
    *spark_marks(1200),
    pytest.mark.skipif(os.environ.get("MQTTD_LONG") != "1", reason="long: set MQTTD_LONG=1"),
]

#: What a data engineer's cluster has: no mqttd, no Twisted, no zope.
PACKAGES = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pandas", "dateutil", "pytz",
            "six.py", "tzdata")  # fmt: skip


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that has Spark's packages and not ours."""
    home = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=60)
    program = home / "bin/python"
    found = subprocess.check_output(
        [program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    for name in PACKAGES:
        source = Path(sysconfig.get_path("purelib"), name)
        if source.exists():
            Path(found.strip(), name).symlink_to(source)
    done = subprocess.run([program, "-c", "import mqttd"], capture_output=True, cwd=tmp_path)
    assert done.returncode != 0
    return program


@pytest.fixture
def cluster(tmp_path: Path, python: Path) -> Iterator[dict[str, str]]:
    """The environment of a driver for a cluster that runs."""
    import pyspark

    from mqttd.pipeline.spark import NoJava
    from mqttd.pipeline.spark.sessions import check_java

    try:
        check_java()
    except NoJava:
        missing("Java", "apt-get install default-jre-headless")
    spark_home = str(Path(pyspark.__file__).parent)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SPARK_HOME": spark_home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    environment.pop("MQTTD_PURE", None)
    processes: list[subprocess.Popen[bytes]] = []

    def begin(name: str, *words: str) -> Path:
        output = tmp_path / f"{name}.log"
        command = [f"{spark_home}/bin/spark-class", f"org.apache.spark.deploy.{words[0]}"]
        with output.open("wb") as file:
            processes.append(
                subprocess.Popen(
                    [*command, *words[1:]], stdout=file, stderr=file, cwd=tmp_path, env=environment
                )
            )
        return output

    try:
        log = begin(
            "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        found = until(
            lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()),
            "the master does not start",
            200,
        )
        environment["MASTER"] = found[1]
        for name in ("worker-1", "worker-2"):
            begin(
                name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1",
                "--memory", "700m", "--work-dir", str(tmp_path / name), found[1],
            )  # fmt: skip
        until(
            lambda: log.read_text().count("Registering worker") == 2,
            "the workers do not start",
            200,
        )
        yield environment
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def executors(application: str) -> list[int]:
    """The processes of an application's executors."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
            if application.encode() in words:
                found.append(int(entry.name))
    return found


def test_the_result_is_exact_though_an_executor_is_killed(
    tmp_path: Path, cluster: dict[str, str], python: Path
) -> None:
    broker = start(
        tmp_path, 'events = ["message.publish"]\nsegment_bytes = 100_000\n',
        {"pull_token_file": "pull"},
    )  # fmt: skip
    try:
        line = until(
            lambda: [one for one in broker.lines if "HTTP interface on port" in one], broker.output
        )
        url = f"http://127.0.0.1:{int(line[0].rpartition(':')[2])}"
        publisher = Publisher(lambda: broker.port, "a/b")
        publisher.start()
        until(lambda: len(publisher.acknowledged) >= 20_000, "nothing is acknowledged")
        publisher.stop()
        until(lambda: len(everything(tmp_path)) >= 20_000, "nothing is logged")
        package = Path(mqttd.__file__).parent
        program = tmp_path / "archive.py"
        shutil.copy(package / "pipeline/spark/pipelines/archive.py", program)
        table, checkpoint = tmp_path / "table", tmp_path / "table/_checkpoint"
        output = tmp_path / "driver.log"
        with output.open("wb") as file:
            driver = subprocess.Popen(
                [
                    f"{cluster['SPARK_HOME']}/bin/spark-submit", "--master", cluster["MASTER"],
                    "--driver-memory", "1g", "--executor-memory", "600m",
                    "--conf", "spark.ui.enabled=false", "--py-files", _archive(package),
                    program, "--url", url, "--token-file", tmp_path / "etc/pull", "--out", table,
                    "--max-events", "2500", "--min-partitions", "4", "--compact", "4",
                ],
                stdout=file, stderr=file, env=cluster, cwd=tmp_path,
            )  # fmt: skip
        try:
            until(
                lambda: list((checkpoint / "commits").glob("[0-9]*")) or driver.poll() is not None,
                "no micro-batch ends",
                500,
            )
            assert driver.poll() is None, output.read_text()[-3000:]
            (application,) = {one.name for one in tmp_path.glob("worker-*/app-*")}
            running = executors(application)
            assert running, "no executor was found"
            os.kill(running[0], signal.SIGKILL)
            assert driver.wait(500) == 0, output.read_text()[-3000:]
        finally:
            if driver.poll() is None:
                driver.kill()
                driver.wait()
        wanted = everything(tmp_path)
        assert f'"events": {len(wanted)}' in output.read_text()
        files = list(table.glob("date=*/event=message.publish/*.parquet"))
        assert len(files) == len({file.parent for file in files})  # compacted
        read = subprocess.check_output(
            [
                python, "-c",
                "import json, sys, pyarrow.parquet as pq\n"
                "rows = [row for name in sys.argv[1:]\n"
                "        for row in pq.ParquetFile(name).read(['seq', 'payload']).to_pylist()]\n"
                "rows.sort(key=lambda row: row['seq'])\n"
                "print(json.dumps([[row['seq'], row['payload'].decode()] for row in rows]))",
                *files,
            ],
            text=True, env=cluster,
        )  # fmt: skip
        assert json.loads(read) == [[event.seq, event.payload.decode()] for event in wanted]
    finally:
        broker.stop()
