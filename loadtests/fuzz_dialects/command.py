"""Sends requests of five tenants to the routes of all dialects, and looks for another's answer."""

from functools import partial
from typing import Any  # Any: options of a script

import click
import msgspec

from loadtests.fuzz_dialects.rpc import fuzz_rpc
from loadtests.fuzz_dialects.traffic import DialectTraffic
from loadtests.fuzz_http.callers import Caller
from loadtests.fuzz_http.command import run_and_show
from loadtests.fuzz_http.run import Traffic
from loadtests.fuzz_http.script import Script, script
from loadtests.options import seed


def dialects_and_rpc(dialects: DialectTraffic) -> Traffic:
    """Return the traffic of all dialects, over HTTP and gRPC."""
    return dialects.traffic(partial(fuzz_rpc, dialects))


def dialects_and_http(dialects: DialectTraffic) -> Traffic:
    """Return traffic whose connections alternate between dialects and odd HTTP."""

    def mixed(seed: int, number: int, callers: list[Caller], **options: Any) -> Script:
        # Of two connections one goes to each gateway.
        make = dialects.script if number // 2 % 2 else script
        return make(seed, number, callers, **options)

    return msgspec.structs.replace(dialects_and_rpc(dialects), script=mixed)


@click.command("fuzz-dialects")
@click.option("--requests", default=100_000)
@seed
def fuzz_dialects_command(*, requests: int, seed: int | None) -> None:
    """Send requests of several tenants to the routes of all dialects; find crossed answers."""
    dialects = DialectTraffic()
    run_and_show(requests=requests, seed=seed, traffic=dialects_and_rpc(dialects))
    click.echo(f"{dialects.hits} answers over HTTP were whole hits; {dialects.calls} over gRPC")
