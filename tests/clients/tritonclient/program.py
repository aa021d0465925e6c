"""Calls the system with the unmodified `tritonclient`, by each method that it answers."""

from tests.clients.checks import run_checks
from tests.clients.tritonclient.grpc_checks import TRITON_GRPC
from tests.clients.tritonclient.http_checks import TRITON_HTTP

if __name__ == "__main__":
    run_checks(TRITON_HTTP, TRITON_GRPC)
