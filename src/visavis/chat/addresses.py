"""Which network addresses are public, and a host's addresses resolved once so that they can be pinned."""

from __future__ import annotations

import ipaddress
import socket
from typing import TypeAlias

from visavis.chat.fetch import FetchPolicy
from visavis.errors import MediaError

__all__ = ["Address", "is_public", "resolve"]

Address: TypeAlias = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]
"""(family, what `socket.connect` takes)."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
_V4_COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291, deprecated
# Not for the open internet by IANA's special-purpose registries, though some Python versions call parts of them global.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments, Oracle's metadata service among them
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "168.63.129.16/32",  # Azure's wire server
        "2001::/23",  # protocol assignments
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet's.

    False for loopback, private, link-local (cloud metadata among them), shared, multicast, reserved and unspecified
    addresses. An IPv6 address that carries an IPv4 one inside (mapped, compatible, 6to4, Teredo, NAT64) is judged by
    that.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and (ip in _NAT64 or ip in _V4_COMPATIBLE):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    if any(ip in network for network in _SPECIAL):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback)


def resolve(host: str, port: int, policy: FetchPolicy, shown: str) -> list[Address]:
    """Every address of `host`, in the resolver's order. Connecting to these, not to the name, pins them.

    Odd spellings of an address (decimal, hex, octal, short forms) come out of the resolver as what they mean.
    Raises MediaError when the name does not resolve, or resolves to anything not public and the policy says so.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid host name"
        raise MediaError(f"{shown}: the host name does not resolve ({reason})") from None
    addresses: list[Address] = [
        (family, sockaddr)  # type: ignore[misc]  # (str, int, …) for the two families asked for
        for family, _, _, _, sockaddr in found
        if family in (socket.AF_INET, socket.AF_INET6)
    ]
    if not policy.private_addresses and not all(is_public(str(sockaddr[0])) for _, sockaddr in addresses):
        raise MediaError(f"{shown}: the host is not on the public internet, and only public addresses are fetched here")
    if not addresses:
        raise MediaError(f"{shown}: the host name does not resolve to an internet address")
    return addresses
