"""The command line of `twistd mqttd`, and what it tells before anything starts.

Promise: a mistake in the configuration, or in a file that a start reads, is told in a line that
says where, and stops the start; `--check-config` reads all of them and starts nothing.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shlex
import stat
import sys
import warnings
from typing import Final, TextIO

from twisted.python import usage

from mqttd import __version__, compiled
from mqttd.access.acl.conf import AclSyntaxError
from mqttd.access.by_listener import AccessByListener, configs_by_listener
from mqttd.access.chain import AccessControl, UnknownModule
from mqttd.admin.doors.door import DoorError, certificate_options
from mqttd.admin.doors.tcp import Tokens
from mqttd.config.files import SHIPPED, find, places
from mqttd.config.load import ConfigError, load
from mqttd.config.plan import option_of, values
from mqttd.config.schema import Config, SslListener
from mqttd.monitor.log.modules import no_modules
from mqttd.plugins.handle.handle import Host
from mqttd.plugins.plugins import Plugins
from mqttd.secrets.lines import PasswordFileError
from mqttd.transports.tls import Tls, TlsError
from mqttd.workers.place import PARENT, count_of, node_names, place_of

__all__ = ["Options", "StartError", "check", "check_cluster", "check_files", "closed_doors"]
__all__ += ["lock_data_dir", "open_secrets", "unheard", "version_text", "why"]


#: What is wrong with one of its files, behind a listener's table.
_OF_LISTENER: Final = re.compile(r"(listener\.\w+\.[\w-]+): (.*)", re.DOTALL)
#: Ends of keys that name files for the broker's own user.
_SECRETS: Final = ("private_key", "secret_file", "token_file", "password_file")


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


def why(error: Exception, config: Config | None = None) -> str:
    """What an operator reads of it; with `config` a file is told with the key that names it."""
    if isinstance(error, ConfigError):
        return f"the configuration has mistakes:\n{error}"
    if isinstance(error, UnknownModule) and config is not None and error.name:
        return f"{config.at(_chain_with(config, error.name))}: {error}"
    if isinstance(error, AclSyntaxError | PasswordFileError) and config is not None:
        return "\n".join(_with_key(config, mistake) for mistake in error.mistakes)
    text = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
        if isinstance(error, FileNotFoundError) and config is not None:
            text += _remedy(config, error.filename)
    if config is None:
        return text
    if (found := _OF_LISTENER.fullmatch(text)) is not None:
        named = _with_key(config, found[2], f"{found[1]}.")
        return text if named == found[2] else named
    return _with_key(config, text)


def _with_key(config: Config, text: str, table: str = "") -> str:
    """What is wrong with a file, whose path begins the text, behind the key that names this file.

    The text as it is where no key, none of `table`, names it.
    """
    for key, value in values(config):
        if not value or not key.startswith(table) or option_of(key).kind != "path":
            continue
        if text.startswith(f"{value}: "):
            return f"{config.at(key)} = {value!r}{text.removeprefix(value)}"
        if text.startswith((f"{value}:", f"{value} ")):
            return f"{config.at(key)}: {text}"
    return text


def _chain_with(config: Config, name: str) -> str:
    """The key whose value is the chain that names a module."""
    for key, value in values(config):
        if key.endswith((".chain", ".auth_chain")) and name in value:
            return key
    return "auth.chain"


def _warn(message: Warning | str, *rest: object, **more: object) -> None:
    """What is warned of before there is a log: a line, without Python's place in our sources."""
    print(f"mqttd: {message}", file=sys.stderr)


def _remedy(config: Config, path: str) -> str:
    """What puts a file that is missing into its place; what else is there stays."""
    if path in (config.auth.username.file, config.auth.scram.file):
        scram = " --scram" if path == config.auth.scram.file else ""
        return f"; `mqttd-ctl users add NAME{scram}` makes one"
    if os.path.basename(path) not in SHIPPED:
        return ""
    folder = os.path.dirname(path)
    above, name = os.path.split(folder)
    if name == "etc":
        return f"; `mqttd-ctl init {shlex.quote(above)}` writes one"
    data = shlex.quote(config.node.data_dir)
    return f"; `mqttd-ctl init {shlex.quote(folder)} --data {data}` writes one"


def check(config: Config) -> None:
    """Read the files that a start reads, and start nothing; raises what is wrong with one."""
    check_files(config)
    _check_log(config)
    for text in (*closed_doors(config), *unheard(config), *open_secrets(config)):
        warnings.warn(text, stacklevel=1)
    Plugins(config, Host(None, None)).check()
    check_cluster(config)
    if config.cluster.kind != "none":
        from mqttd.cluster.links.tls import plain_etcd

        if text := plain_etcd(config.cluster):
            warnings.warn(text, stacklevel=1)


def check_cluster(config: Config) -> None:
    """Whether this can be a node, where it is to be one: what goes together, and its files.

    Raises StartError.
    """
    if config.cluster.kind == "none":
        if config.session.replicate != "none":
            text = f"session.replicate = {config.session.replicate!r} needs a cluster"
            raise StartError(f'{text}: cluster.kind = "etcd"')
        return
    from mqttd.cluster.links.certificates import check_own
    from mqttd.cluster.links.tls import etcd_access, nats_access, node_options
    from mqttd.cluster.refused import refused

    if text := refused(config):
        raise StartError(text)
    try:
        for name in node_names(config.node.name, count_of(config.node.workers)):
            check_own(config.cluster, name)
        node_options(config.cluster)
        etcd_access(config.cluster)
        if config.session.replicate != "none":
            nats_access(config.jetstream)
    except TlsError as error:
        raise StartError(str(error)) from None


def check_files(config: Config) -> AccessByListener:
    """Read users, rules, certificates and tokens, in any thread; returns the access control.

    Raises what is wrong with one.
    """
    own = {name: AccessControl(each) for name, each in configs_by_listener(config).items()}
    access = AccessByListener(AccessControl(config), own)
    for kind, names in config.listener.items():
        for name, settings in names.items():
            if isinstance(settings, SslListener):
                try:
                    Tls(settings)
                except TlsError as error:
                    raise StartError(f"listener.{kind}.{name}: {error}") from None
    try:
        _check_doors(config)
    except DoorError as error:
        raise StartError(str(error)) from None
    return access


def _check_log(config: Config) -> None:
    """Whether the log's file could be opened; does not make one."""
    path = os.path.abspath(config.log.file)
    folder = os.path.dirname(path)
    if config.log.to != "file":
        return
    if not os.path.isdir(folder):
        raise StartError(f"log.file = {config.log.file!r}: there is no directory {folder}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise StartError(f"log.file = {config.log.file!r}: cannot be written")


def _check_doors(config: Config) -> None:
    """Read what the doors of the HTTP interface name; raises DoorError."""
    tcp, page = config.admin.tcp, config.admin.page
    if tcp.token_file or tcp.pull_token_file:
        Tokens("token_file", tcp.token_file)
        Tokens("pull_token_file", tcp.pull_token_file)
        if tcp.certificate:
            certificate_options("admin.tcp", tcp)
    if page.enabled and page.certificate:
        certificate_options("admin.page", page)


def closed_doors(config: Config) -> list[str]:
    """What tells who gave `admin.tcp` or the dashboard an address that nothing is opened there."""
    tcp, page = config.admin.tcp, config.admin.page
    found = []
    if (where := config.given.get("admin.tcp.bind")) and not tcp.token_file + tcp.pull_token_file:
        found.append(
            f'{where}: admin.tcp.bind = "{tcp.bind}" opens nothing: this door is closed until'
            " admin.tcp.token_file names a file of tokens (openssl rand -hex 32 > FILE)"
        )
    if (where := config.given.get("admin.page.bind")) and not page.enabled:
        found.append(
            f'{where}: admin.page.bind = "{page.bind}" opens nothing: there is no dashboard without'
            " admin.page.enabled = true"
        )
    return found


def unheard(config: Config) -> list[str]:
    """What tells who gave a level to a module of mqttd that there is not: nothing would come."""
    where = config.at("log.modules")
    return [f"{where}: {text}" for text in no_modules(config.log.modules)]


def open_secrets(config: Config) -> list[str]:
    """What tells whose keys, tokens and passwords in files everybody on the machine may read."""
    found = []
    for key, path in values(config):
        if not path or not key.endswith(_SECRETS):
            continue
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            continue  # whoever reads it says so
        if mode & stat.S_IROTH:
            text = f"mode {mode:04o} lets everybody read it; expected 0600"
            found.append(f"{config.at(key)} = {path!r}: {text}")
    return found


def lock_data_dir(path: str) -> TextIO:
    """One broker per data directory."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        lock = open(os.path.join(path, "mqttd.lock"), "a+")  # noqa: SIM115
    except OSError as error:
        raise StartError(f"node.data_dir = {path!r} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StartError(
            f"node.data_dir = {path!r} is in use by another mqttd; stop it, or give this"
            " one a directory of its own"
        ) from None
    return lock


def version_text() -> str:
    """What `--version` prints."""
    how = "compiled" if compiled() else "pure Python, slower"
    return f"mqttd {__version__} ({how}), Python {platform.python_version()}"


class Options(usage.Options):
    """Command line of `twistd mqttd`."""

    optParameters = [
        [
            "config",
            "c",
            None,
            "Configuration file; without it the first that is there"
            f" of {', '.join(places({'HOME': '~'}))}.",
        ]
    ]
    optFlags = [["check-config", None, "Check the configuration and stop."]]
    #: The program, where that is not twistd with our name behind it.
    called = ""

    def getSynopsis(self) -> str:
        """See `usage.Options`."""
        if self.called:
            return f"Usage: {self.called} [options]"
        return str(super().getSynopsis())

    def opt_version(self) -> None:
        """Print the version and whether the hot path is compiled."""
        print(version_text())
        sys.exit(0)

    def postOptions(self) -> None:
        """Read the configuration, so that mistakes are told before anything starts."""
        path = self["config"] or find(os.environ)
        warnings.showwarning = _warn
        config: Config | None = None
        try:
            self.configuration = config = load(path, os.environ)
            if path is None and not os.path.exists(config.acl.file):
                raise StartError(
                    f"no configuration found; looked for {', '.join(places(os.environ))}."
                    " `mqttd-ctl init .` writes one, --config FILE names another"
                )
            if self["check-config"]:
                check(config)
        except Exception as error:
            # A UsageError would print the options first: the mistake is in a file.
            raise SystemExit(f"mqttd cannot start: {why(error, config)}") from None
        if self["check-config"]:
            print(f"{path or 'defaults'}: ok")
            sys.exit(0)
        if place_of(os.environ) is None and PARENT not in os.environ:
            print(f"mqttd: configuration {path or 'defaults'}", file=sys.stderr)
