"""`FetchPolicy`: who may read what, from where, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from visavis.errors import MediaError, OptionError, shorten

__all__ = ["PERMISSIVE", "STRICT", "FetchPolicy"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """Limits of what media in messages may make this process read. The defaults are `PERMISSIVE`.

    Folders are compared by real path, so a symlink out of an allowed folder is refused. With
    `private_addresses=False` a host is resolved once, refused if any of its addresses is not a public one, and
    connected to at the address that was checked; every redirect is judged anew. Bytes are counted while they
    arrive; pixels are read from the header and checked before anything is decoded. Raises OptionError for limits
    that cannot be meant.
    """

    allowed_folders: tuple[str, ...] | None = None  # None: every folder; (): no local files at all
    urls: bool = True  # http and https
    allowed_hosts: tuple[str, ...] | None = None  # None: every host; "example.com", "*.example.com"
    private_addresses: bool = True  # loopback, private networks, link-local, cloud metadata
    proxies: bool = True  # honour HTTP_PROXY, HTTPS_PROXY and NO_PROXY
    max_redirects: int = 5
    connect_timeout_s: float = 10.0  # per address
    read_timeout_s: float = 20.0  # between two pieces of an answer
    total_timeout_s: float = 120.0  # for one medium, redirects included
    max_bytes: int = 256 * MIB  # of one encoded image
    max_video_bytes: int = 4096 * MIB  # of one encoded video
    max_pixels: int = 178_956_970  # height × width of one image or frame; where Pillow too sees a decompression bomb
    max_video_pixels: int = 2_000_000_000  # frames × height × width of one decoded video (6 GB)

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_video_bytes", "max_pixels", "max_video_pixels"):
            if getattr(self, name) < 1:
                raise OptionError(f"FetchPolicy: {name} {shorten(getattr(self, name))} must be 1 or more")
        for name in ("connect_timeout_s", "read_timeout_s", "total_timeout_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise OptionError(f"FetchPolicy: {name} {shorten(getattr(self, name))} must be above 0")
        if self.max_redirects < 0:
            raise OptionError(f"FetchPolicy: max_redirects {self.max_redirects} must be 0 or more")
        for name in ("allowed_folders", "allowed_hosts"):
            if isinstance(getattr(self, name), str):
                raise OptionError(f"FetchPolicy: {name} takes a tuple of strings, not one string")

    def check_path(self, real_path: str, shown: str) -> None:
        """Raises MediaError unless `real_path` (symlinks resolved) lies in an allowed folder.

        Judged before looking whether the file exists, so that errors tell nothing about other folders.
        """
        if self.allowed_folders is None:
            return
        if not self.allowed_folders:
            raise MediaError(f"{shown}: local files are not allowed here; send the content itself as a data URL")
        for folder in self.allowed_folders:
            root = os.path.realpath(os.path.expanduser(folder))
            if real_path == root or real_path.startswith(root.rstrip(os.sep) + os.sep):
                return
        raise MediaError(f"{shown}: is not in a folder that may be read here")

    def check_host(self, host: str, shown: str) -> None:
        """Raises MediaError when URLs, or this host, are not allowed."""
        if not self.urls:
            raise MediaError(f"{shown}: URLs are not fetched here; send the content itself as a data URL")
        if self.allowed_hosts is None:
            return
        name = host.lower().rstrip(".")
        for pattern in self.allowed_hosts:
            wanted = pattern.lower().rstrip(".")
            if name == wanted or (wanted.startswith("*.") and name.endswith(wanted[1:])):
                return
        raise MediaError(f"{shown}: the host is not on the list of hosts that may be fetched from")


PERMISSIVE = FetchPolicy()
"""For the library and the command line: what the user may read, with caps that only stop accidents."""

STRICT = FetchPolicy(
    allowed_folders=(),
    urls=False,
    private_addresses=False,
    proxies=False,
    max_redirects=3,
    connect_timeout_s=5.0,
    read_timeout_s=5.0,
    total_timeout_s=20.0,
    max_bytes=32 * MIB,
    max_video_bytes=256 * MIB,
    max_pixels=64_000_000,
    max_video_pixels=500_000_000,
)
"""For servers: no local files, no URLs. `dataclasses.replace(STRICT, urls=True)` fetches from public addresses."""
