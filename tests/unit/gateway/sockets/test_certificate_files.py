"""The date of a certificate, read without the library that knows only verified ones."""

import datetime as dt
import ssl
from pathlib import Path

import pytest
import trustme

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.edge import ListenerTls
from sluicegate.gateway.sockets.certificate_files import expiry_of, first_certificate


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2999])
def test_the_expiry_is_that_of_the_first_certificate(year: int) -> None:
    until = dt.datetime(year, 5, 17, 8, 9, 10, tzinfo=dt.UTC)
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", not_after=until)
    file = (leaf.private_key_pem.bytes() + leaf.cert_chain_pems[0].bytes()).decode()

    expires = expiry_of(file + authority.cert_pem.bytes().decode())

    assert expires == until.timestamp()
    assert first_certificate(file).strip() == leaf.cert_chain_pems[0].bytes().decode().strip()


@pytest.mark.parametrize("label", ["TRUSTED CERTIFICATE", "X509 CERTIFICATE"])
def test_a_certificate_may_have_each_name_that_is_loaded(tmp_path: Path, label: str) -> None:
    leaf = trustme.CA().issue_cert("localhost")
    own = leaf.cert_chain_pems[0].bytes().decode()
    file = tmp_path / "server.pem"
    file.write_text(leaf.private_key_pem.bytes().decode() + own.replace("CERTIFICATE", label))

    assert ListenerTls(file).expires == expiry_of(own)
    assert first_certificate(file.read_text()).strip() == own.strip()


@pytest.mark.parametrize("body", ["", "MIIB\n-----END CERTIFICATE-----", "MII"])
def test_a_file_that_is_cut_off_after_it_was_loaded_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    file = tmp_path / "server.pem"
    leaf = trustme.CA().issue_cert("localhost")
    leaf.private_key_and_cert_chain_pem.write_to_path(file)
    tls = ListenerTls(file)
    before = tls.context
    file.write_bytes(file.read_bytes() + b"\n")
    load = ssl.SSLContext.load_cert_chain

    def load_and_cut(context: ssl.SSLContext, *args: object, **kwargs: object) -> None:
        load(context, *args, **kwargs)  # type: ignore[arg-type]
        file.write_text(f"-----BEGIN CERTIFICATE-----\n{body}")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_and_cut)
    with pytest.raises(ConfigurationError, match="certificate cannot be read"):
        tls.renew()

    assert tls.context is before
