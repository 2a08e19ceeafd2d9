"""Compiles the hot path with mypyc; everything else about the package is in setup.cfg.

The modules in ``HOT`` are plain Python that also compiles. All of them become one
extension group (calls and attributes between them are C), so it is all or nothing:

    a compiler and mypy    .so files beside the .py files, and Python prefers them
    anything missing       one warning; the .py files run, slower, and nothing else differs

``MQTTD_PURE=1`` builds without them. ``MQTTD_REQUIRE_COMPILED=1`` fails instead of falling back.
``CFLAGS`` adds to the flags that Python was built with: see `python_flags`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import MutableMapping
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HOT = [
    "mqttd/codec/bodies.py",
    "mqttd/codec/frame.py",
    "mqttd/codec/packet_types.py",
    "mqttd/codec/packets.py",
    "mqttd/codec/parser.py",
    "mqttd/codec/properties.py",
    "mqttd/codec/reasons.py",
    "mqttd/codec/scan.py",
    "mqttd/codec/spans.py",
    "mqttd/codec/serializer.py",
    "mqttd/codec/sniff.py",
    "mqttd/codec/topic.py",
    "mqttd/session/account.py",
    "mqttd/session/acknowledging.py",
    "mqttd/session/ahead.py",
    "mqttd/session/aliases.py",
    "mqttd/session/carrying.py",
    "mqttd/session/changes.py",
    "mqttd/session/channel.py",
    "mqttd/session/charged.py",
    "mqttd/session/connection.py",
    "mqttd/session/filters.py",
    "mqttd/session/forward.py",
    "mqttd/session/framing.py",
    "mqttd/session/general.py",
    "mqttd/session/guid.py",
    "mqttd/session/inbound.py",
    "mqttd/session/incoming.py",
    "mqttd/session/journal.py",
    "mqttd/session/kept.py",
    "mqttd/session/lending.py",
    "mqttd/session/limits.py",
    "mqttd/session/listener.py",
    "mqttd/session/message.py",
    "mqttd/session/metrics.py",
    "mqttd/session/missing.py",
    "mqttd/session/mount.py",
    "mqttd/session/mqueue.py",
    "mqttd/session/notes.py",
    "mqttd/session/output.py",
    "mqttd/session/pending.py",
    "mqttd/session/promise.py",
    "mqttd/session/publisher.py",
    "mqttd/session/receiver.py",
    "mqttd/session/recorded.py",
    "mqttd/session/replay.py",
    "mqttd/session/route.py",
    "mqttd/session/runs.py",
    "mqttd/session/sending.py",
    "mqttd/session/session.py",
    "mqttd/session/settings.py",
    "mqttd/session/sights.py",
    "mqttd/session/spans.py",
    "mqttd/session/state.py",
    "mqttd/session/stems.py",
    "mqttd/session/topics.py",
    "mqttd/session/unfinished.py",
    "mqttd/session/wheel.py",
    "mqttd/broker/abroad.py",
    "mqttd/broker/broker.py",
    "mqttd/broker/claims.py",
    "mqttd/broker/connack.py",
    "mqttd/broker/connecting.py",
    "mqttd/broker/deliveries.py",
    "mqttd/broker/endings.py",
    "mqttd/broker/fans.py",
    "mqttd/broker/gears.py",
    "mqttd/broker/ground.py",
    "mqttd/broker/handing.py",
    "mqttd/broker/holders.py",
    "mqttd/broker/local.py",
    "mqttd/broker/losses.py",
    "mqttd/broker/login.py",
    "mqttd/broker/memory.py",
    "mqttd/broker/mounts.py",
    "mqttd/broker/partings.py",
    "mqttd/broker/publishing.py",
    "mqttd/broker/pubsub.py",
    "mqttd/broker/quota.py",
    "mqttd/broker/records.py",
    "mqttd/broker/registry.py",
    "mqttd/broker/reports.py",
    "mqttd/broker/retained.py",
    "mqttd/broker/retained_tree.py",
    "mqttd/broker/retainer.py",
    "mqttd/broker/rights.py",
    "mqttd/broker/room.py",
    "mqttd/broker/router.py",
    "mqttd/broker/shared.py",
    "mqttd/broker/shedding.py",
    "mqttd/broker/subscribing.py",
    "mqttd/broker/taps.py",
    "mqttd/broker/topic_rates.py",
    "mqttd/broker/trie.py",
    "mqttd/broker/turns.py",
    "mqttd/broker/walks.py",
    "mqttd/broker/wills.py",
    "mqttd/storage/blocks.py",
    "mqttd/storage/durability.py",
    "mqttd/storage/entries.py",
    "mqttd/storage/journal.py",
    "mqttd/storage/ledger.py",
    "mqttd/storage/reading.py",
    "mqttd/storage/recovery.py",
    "mqttd/storage/releasing.py",
    "mqttd/storage/restore.py",
    "mqttd/pipeline/log/columns.py",
    "mqttd/pipeline/log/parts.py",
    "mqttd/pipeline/log/payloads.py",
    "mqttd/access/acl_asked.py",
    "mqttd/access/acl_classes.py",
    "mqttd/access/acl_entry.py",
    "mqttd/access/acl_rules.py",
    "mqttd/access/acl_topics.py",
    "mqttd/access/acl_who.py",
    "mqttd/access/authorization.py",
    "mqttd/transports/accepting.py",
    "mqttd/transports/engine.py",
    "mqttd/transports/frames.py",
    "mqttd/transports/layered_edge.py",
    "mqttd/transports/layered_stream.py",
    "mqttd/transports/layers.py",
    "mqttd/transports/lobby.py",
    "mqttd/transports/ports.py",
    "mqttd/transports/proxy.py",
    "mqttd/transports/records.py",
    "mqttd/transports/stream.py",
    "mqttd/cluster/catcher.py",
    "mqttd/cluster/filling.py",
    "mqttd/cluster/nodes.py",
    "mqttd/cluster/parts.py",
    "mqttd/mesh/arriving.py",
    "mqttd/mesh/changes.py",
    "mqttd/mesh/ferry.py",
    "mqttd/mesh/flight.py",
    "mqttd/mesh/frames.py",
    "mqttd/mesh/handled.py",
    "mqttd/mesh/landing.py",
    "mqttd/mesh/lane.py",
    "mqttd/mesh/link.py",
    "mqttd/mesh/mesh.py",
    "mqttd/mesh/neighbour.py",
    "mqttd/mesh/peer.py",
    "mqttd/mesh/pouring.py",
    "mqttd/mesh/retained.py",
    "mqttd/mesh/telling.py",
    "mqttd/workers/mesh.py",
    "mqttd/workers/relay.py",
]

#: All but the modules' entry points stays inside: calls then need no jump through a table, and
#: small functions are inlined (0.80 to 0.97 of the CPU per message without it).
HIDDEN = ["-fvisibility=hidden"]

PURE = os.environ.get("MQTTD_PURE") == "1"
REQUIRE = os.environ.get("MQTTD_REQUIRE_COMPILED") == "1"


def python_flags(environ: MutableMapping[str, str]) -> None:
    """Have ``CFLAGS`` begin with Python's own C flags.

    setuptools lets ``CFLAGS`` replace them. Without -DNDEBUG the asserts of mypyc's code stay in,
    which cost a tenth, and without -fwrapv its integers are not what Python's headers count on.
    What the caller gives comes last and wins.
    """
    own = sysconfig.get_config_var("CFLAGS") or ""
    given = environ.get("CFLAGS")
    if given is not None and not given.startswith(own):
        environ["CFLAGS"] = f"{own} {given}"


def extensions() -> list[Extension]:
    """The mypyc group, or nothing where it was not wanted or cannot be made."""
    if PURE:
        return []
    try:
        from mypyc.build import mypycify

        # No config file: its plugins and overrides are for the whole tree, and are
        # not installed where pip builds. The group name keeps file names the same.
        made = mypycify(
            ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", *HOT],
            opt_level="3",
            debug_level="0",
            group_name="mqttd",
        )
        if sys.platform != "win32":
            for extension in made:
                extension.extra_compile_args = [*extension.extra_compile_args, *HIDDEN]
        return made
    except (Exception, SystemExit) as error:
        if REQUIRE:
            raise
        warn(error)
        return []


class BuildPackage(build_py):
    """Puts the shipped configuration into the package: ``mqttd-ctl init`` writes it from there."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "mqttd", "etc")
            self.mkpath(str(folder))
            for path in sorted(Path("etc").glob("*.conf")):
                self.copy_file(str(path), str(folder / path.name))


class BuildAllOrNothing(build_ext):
    """Falls back to the sources if any part of the group does not compile.

    ``Extension.optional`` would decide for each file, and leave half a group behind,
    which cannot be imported.
    """

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            for stale in Path("mqttd").rglob("*.so"):
                stale.unlink()  # of a module that may have left the group since
        try:
            super().run()
        except Exception as error:
            if REQUIRE:
                raise
            warn(error)
            for extension in self.extensions:
                built = Path(self.build_lib, *extension.name.split("."))
                for path in built.parent.glob(built.name + ".*.so"):
                    path.unlink()
            self.extensions = []


def warn(error: BaseException) -> None:
    print(f"mqttd: hot path not compiled, the broker will be slower: {error}", file=sys.stderr)


python_flags(os.environ)
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildAllOrNothing, "build_py": BuildPackage},
)
