"""Real back ends for tests: started on free ports of this machine in folders of their own.

with started(folder) as servers: servers.pgsql.port ...

All of them start at the same time. PostgreSQL refuses to run as root: then it runs as nobody.
"""

from __future__ import annotations

import contextlib
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.needs import missing

__all__ = ["Server", "free_port", "mariadb", "mongo", "postgres", "redis", "slapd", "start_all"]

DEADLINE = 60.0
NOBODY = 65534


@dataclass
class Server:
    """A running server."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    command: Sequence[Any]
    options: dict[str, Any]

    def stop(self) -> None:
        """Kill it; what waits for it sees its connections closed."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.poll() is None:
            # PostgreSQL's immediate shutdown takes its children along.
            self.process.send_signal(signal.SIGQUIT if self.name == "postgres" else signal.SIGKILL)
        self.process.wait(DEADLINE)

    def start(self, ready: Callable[[], Any]) -> None:
        """Start it again and wait until `ready` does not raise."""
        self.process = _run(self.folder, self.command, self.options)
        _wait(self, ready)

    def log(self) -> str:
        """What it has written."""
        return (self.folder / "output").read_text(errors="replace")


def free_port() -> int:
    """A port nobody listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many, no two the same.

    None that the system gives to a connection before its server has come to listen there.
    """
    below = _given_from()
    with contextlib.ExitStack() as stack:
        taken: list[int] = []
        while len(taken) < count:
            each = stack.enter_context(socket.socket())
            try:
                each.bind(("127.0.0.1", random.randrange(10000, below) if below > 20000 else 0))
            except OSError:
                continue
            taken.append(int(each.getsockname()[1]))
        return taken


def _given_from() -> int:
    """The first of the ports that the system gives to connections; 0 where it does not say."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 0


def program(name: str, packages: str) -> str:
    """The path of a server's program; skips the test without it."""
    folders = ["/usr/sbin", "/usr/local/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"))]
    path = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if path is None:
        missing(name, f"apt-get install {packages}")
    return path


def start_all(starts: Sequence[Callable[[], Server]]) -> list[Server]:
    """Start servers side by side; stops those that did when one does not."""
    with ThreadPoolExecutor(len(starts)) as pool:
        waiting = [pool.submit(start) for start in starts]
    servers = [each.result() for each in waiting if each.exception() is None]
    for each in waiting:
        if (error := each.exception()) is not None:
            for server in servers:
                server.stop()
            raise error
    return servers


def start(
    name: str,
    port: int,
    folder: Path,
    command: Sequence[Any],
    ready: Callable[[], Any],
    **options: Any,
) -> Server:
    server = Server(name, port, _run(folder, command, options), folder, command, options)
    _wait(server, ready)
    return server


def _run(folder: Path, command: Sequence[Any], options: dict[str, Any]) -> subprocess.Popen[bytes]:
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, **options
        )


def _wait(server: Server, ready: Callable[[], Any]) -> None:
    until = time.monotonic() + DEADLINE
    while True:
        try:
            ready()
            return
        except Exception as error:
            if server.process.poll() is not None or time.monotonic() > until:
                server.stop()
                raise RuntimeError(
                    f"{server.name} did not start: {error}\n{server.log()}"
                ) from None
        time.sleep(0.05)


def once(command: Sequence[Any], folder: Path, **options: Any) -> None:
    """Run a command to its end."""
    done = subprocess.run(
        command, capture_output=True, timeout=DEADLINE, cwd=folder, stdin=subprocess.DEVNULL,
        **options,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")


# -- the servers


def postgres(folder: Path, sql: str) -> Server:
    """PostgreSQL with a data base `mqtt`, whose owner is the user `owner` without a password.

    `folder` has to be one that everybody may enter.
    """
    import psycopg

    folder.mkdir()
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    data, port = folder / "data", free_port()
    once(
        [program("initdb", "postgresql"), "--no-sync", "-A", "scram-sha-256", "-U", "owner",
         "--no-instructions", "-E", "UTF8", "--no-locale", f"--pwfile={_file(folder, 'owner')}",
         data],
        folder, **options,
    )  # fmt: skip

    def connect(database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=port, user="owner", password="owner", dbname=database,
            autocommit=True, connect_timeout=5,
        )  # fmt: skip

    server = start(
        "postgres", port, folder,
        [program("postgres", "postgresql"), "-D", data, "-p", str(port), "-h", "127.0.0.1",
         "-k", "", "-c", "fsync=off", "-c", "full_page_writes=off"],
        lambda: connect().close(), **options,
    )  # fmt: skip
    with connect() as connection:
        connection.execute("CREATE DATABASE mqtt")
    with connect("mqtt") as connection:
        connection.execute(sql)  # type: ignore[call-overload]
    return server


def _file(folder: Path, text: str) -> Path:
    file = folder / "password"
    file.write_text(text)
    return file


def mariadb(folder: Path, sql: str) -> Server:
    """MariaDB with a data base `mqtt`; `sql` is run in it, a statement a line."""
    import pymysql

    folder.mkdir()
    user = ["--user=root"] if os.geteuid() == 0 else []
    base = ["--no-defaults", *user, f"--datadir={folder}/data"]
    tuning = ["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M"]
    once(
        [program("mariadb-install-db", "mariadb-server"), *base, *tuning,
         "--auth-root-authentication-method=normal", "--skip-test-db", "--basedir=/usr"],
        folder,
    )  # fmt: skip
    port, path = free_port(), folder / "s"

    def connect(**more: Any) -> Any:
        return pymysql.connect(unix_socket=str(path), user="root", autocommit=True, **more)

    server = start(
        "mariadbd", port, folder,
        [program("mariadbd", "mariadb-server"), *base, *tuning, f"--port={port}",
         "--bind-address=127.0.0.1", f"--socket={path}", "--innodb-flush-method=nosync",
         "--skip-name-resolve", f"--pid-file={folder}/pid"],
        lambda: connect().close(),
    )  # fmt: skip
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE mqtt")
        cursor.execute("USE mqtt")
        for statement in filter(None, map(str.strip, sql.split(";\n"))):
            cursor.execute(statement)
    return server


def redis(folder: Path, password: str, commands: Sequence[Sequence[str]]) -> Server:
    """Redis with a password, after these commands."""
    import redis as client

    folder.mkdir()
    port = free_port()

    def connect() -> client.Redis:
        made = client.Redis(port=port, password=password, socket_timeout=5)
        made.ping()
        return made

    server = start(
        "redis-server", port, folder,
        [program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1",
         "--requirepass", password, "--dir", folder],
        connect,
    )  # fmt: skip
    with connect() as connection:
        for command in commands:
            connection.execute_command(*command)
        connection.execute_command("SAVE")
    return server


def slapd(folder: Path, suffix: str, root_password: str, ldif: str) -> Server:
    """OpenLDAP with the entries of `ldif`; TLS with server.crt, server.key of `folder`.

    It speaks StartTLS at its port, and LDAPS at the one written in the file `ldaps`.
    """
    import ldap3

    data, port = folder / "data", free_port()
    data.mkdir()
    encrypted = free_port()
    (folder / "ldaps").write_text(str(encrypted))
    modules = next(iter(glob.glob("/usr/lib*/ldap") + glob.glob("/usr/lib/*/ldap")), "")
    config = folder / "slapd.conf"
    schemas = "".join(
        f"include /etc/ldap/schema/{name}.schema\n"
        for name in ("core", "cosine", "nis", "inetorgperson")
    )
    config.write_text(
        f"{schemas}modulepath {modules}\nmoduleload back_mdb\npidfile {folder}/pid\n"
        f"TLSCACertificateFile {folder}/ca.crt\nTLSCertificateFile {folder}/server.crt\n"
        f"TLSCertificateKeyFile {folder}/server.key\n"
        f"database mdb\nsuffix {suffix}\nrootdn cn=admin,{suffix}\nrootpw {root_password}\n"
        f"directory {data}\naccess to attrs=userPassword by anonymous auth by * none\n"
        "access to * by users read by * none\n"
    )
    (folder / "entries.ldif").write_text(ldif)
    path = program("slapd", "slapd")
    once([program("slapadd", "slapd"), "-q", "-f", config, "-l", folder / "entries.ldif"], folder)

    def ready() -> None:
        connection = ldap3.Connection(
            ldap3.Server("127.0.0.1", port=port, get_info=ldap3.NONE, connect_timeout=5)
        )
        connection.open()
        connection.unbind()

    return start(
        "slapd", port, folder,
        [path, "-h", f"ldap://127.0.0.1:{port} ldaps://127.0.0.1:{encrypted}", "-f", config,
         "-d", "0"],
        ready,
    )  # fmt: skip


def mongo(folder: Path, documents: dict[str, list[dict[str, Any]]]) -> Server:
    """What speaks MongoDB's protocol and can be installed: NX-27017, which keeps it in SQLite."""
    import pymongo

    folder.mkdir()
    path = Path(sys.executable).parent / "nx-27017"
    if not path.exists():
        missing("nx-27017", "pip install nx-27017")
    port = free_port()

    def connect() -> pymongo.MongoClient[Any]:
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(
            "127.0.0.1", port, serverSelectionTimeoutMS=1000
        )
        client.admin.command("ping")
        return client

    server = start(
        "nx-27017", port, folder,
        [path, "--db", folder / "db", "--host", "127.0.0.1", "-p", str(port),
         "--log-file", folder / "log", "--pid-file", folder / "pid"],
        lambda: connect().close(),
    )  # fmt: skip
    with connect() as client:
        for collection, entries in documents.items():
            client["mqtt"][collection].insert_many(entries)
    return server
