"""Issues certificates of private authorities, and writes them to the files that processes read."""

import datetime as dt
from pathlib import Path

import trustme

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Authority:
    """A private certificate authority; `ca` is the file with its certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, expired: bool = False) -> Path:
        """Write a certificate for `hosts` and its key to one file; replace an existing file."""
        until = LONG_AGO + dt.timedelta(days=1) if expired else None
        start = LONG_AGO if expired else None
        leaf = self._authority.issue_cert(*hosts, not_before=start, not_after=until)
        path = self._folder / f"{name}.pem"
        fresh = path.with_suffix(".new")
        leaf.private_key_and_cert_chain_pem.write_to_path(fresh)
        fresh.replace(path)
        return path

    def pair(self, name: str, host: str) -> tuple[Path, Path]:
        """Write a certificate and its key to two files."""
        leaf = self._authority.issue_cert(host)
        chain, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        leaf.cert_chain_pems[0].write_to_path(chain)
        leaf.private_key_pem.write_to_path(key)
        return chain, key

    def server(self, *, hosts: tuple[str, ...] = ("127.0.0.1",), expired: bool = False) -> Path:
        """Write a backend's certificate."""
        return self.issue("server", *hosts, expired=expired)
