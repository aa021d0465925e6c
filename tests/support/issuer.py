"""An identity provider of a test: an HTTP server in this process."""

import http.server
import threading

import msgspec
from joserfc.jwk import ECKey, OctKey, RSAKey
from typing_extensions import override

RSA = RSAKey.generate_key(2048, {"kid": "rsa-1"})
EC = ECKey.generate_key("P-256", {"kid": "ec-1"})


class Issuer:
    """An identity provider: its discovery document, its keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.keys: list[RSAKey | ECKey | OctKey] = [RSA, EC]
        self.listed: object = None
        """Answered in place of the keys, if it is set."""
        self.encoding = ""
        self.reads = 0
        self.is_broken = False
        self.name = ""
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = issuer.answer(self.path)
                self.send_response(500 if issuer.is_broken else 200)
                self.send_header("content-length", str(len(body)))
                if issuer.encoding:
                    self.send_header("content-encoding", issuer.encoding)
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = self.name = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str) -> bytes:
        """Return the body of an answer."""
        if path == "/.well-known/openid-configuration":
            return msgspec.json.encode({"issuer": self.name, "jwks_uri": f"{self.url}/keys"})
        self.reads += 1
        if isinstance(self.listed, bytes):
            return self.listed
        if self.listed is not None:
            return msgspec.json.encode(self.listed)
        return msgspec.json.encode({"keys": [key.as_dict(private=False) for key in self.keys]})

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
