"""The interfaces: documented, versioned, and fulfilled by what is built in."""

from __future__ import annotations

import inspect

import pytest
from zope.interface import Interface
from zope.interface.interface import Attribute, InterfaceClass, Method
from zope.interface.verify import verifyClass, verifyObject

from mqttd import interfaces
from mqttd.access.acl_module import AclFile
from mqttd.access.auth.anonymous import Anonymous
from mqttd.access.auth.certificate import CertificateName
from mqttd.access.auth.clientid import Clientid
from mqttd.access.auth.jwt import Jwt
from mqttd.access.auth.scram import Scram
from mqttd.access.auth.username import Username
from mqttd.interfaces import (
    IAccessControl,
    IAccessExplainer,
    IAuthenticator,
    IEnhancedAuthenticator,
)

ALL = [
    value
    for value in vars(interfaces).values()
    if isinstance(value, InterfaceClass) and value is not Interface
]


def test_every_interface_is_public() -> None:
    names = {name for name, value in vars(interfaces).items() if value in ALL}
    assert names | {"API_VERSION"} == set(interfaces.__all__)
    assert names >= {
        "IAuthenticator",
        "IAccessControl",
        "IHookPlugin",
        "IHooks",
        "IMqttdPlugin",
        "IPlugin",
        "IPluginHandle",
        "ISessionStore",
        "IRetainedStore",
        "IRegistry",
    }


@pytest.mark.parametrize("interface", ALL, ids=lambda interface: interface.__name__)
def test_every_interface_and_each_of_its_members_is_documented(interface: InterfaceClass) -> None:
    assert interface.__doc__
    for name in interface.names(all=True):
        member = interface[name]
        assert isinstance(member, Attribute | Method)
        assert inspect.cleandoc(member.getDoc()), f"{interface.__name__}.{name}"


@pytest.mark.parametrize(
    "interface,provider",
    [
        (IAuthenticator, Anonymous),
        (IAuthenticator, Username),
        (IAuthenticator, Clientid),
        (IAuthenticator, CertificateName),
        (IAuthenticator, Jwt),
        (IEnhancedAuthenticator, Scram),
        (IAccessControl, AclFile),
        (IAccessExplainer, AclFile),
    ],
)
def test_what_is_built_in_fulfils_its_interface(
    interface: InterfaceClass, provider: type[object]
) -> None:
    assert verifyClass(interface, provider)
    assert verifyObject(interface, provider())
