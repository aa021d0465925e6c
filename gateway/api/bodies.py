"""What the bodies of requests say: decoded, checked, and known again when the same comes anew."""

import msgspec

from backends.protocol import Task
from gateway.api.answers import failed_usage
from gateway.api.exchange import Exchange, Reading
from gateway.api.schemas import TASK_BODIES, Body, InferBody
from gateway.errors import InvalidRequest, PayloadTooLarge
from gateway.rate_limit.base import Charge
from gateway.rate_limit.charges import charges_for
from gateway.runtime.runtime import Runtime
from gateway.types import InferenceRequest, Principal

_LONGEST_REMEMBERED = 1024
_MOST_REMEMBERED = 4096


class BodyReader:
    """Reads bodies; what it remembers of them holds under one runtime."""

    def __init__(self) -> None:
        self._decoders = {body.task: msgspec.json.Decoder(body) for body in TASK_BODIES}
        self._infer_decoder = msgspec.json.Decoder(InferBody)
        self._runtime: Runtime | None = None
        self._readings: dict[tuple[Principal | None, Task, str, bytes], Reading] = {}

    def read(self, exchange: Exchange, model: str, raw: bytes) -> Reading:
        """Return what a body says; the same bytes of the same caller are read once.

        Raises:
            InvalidRequest: it is no JSON, or not what the route takes.
            PayloadTooLarge: it has more items than the document allows.
        """
        if exchange.runtime is not self._runtime:
            self._runtime = exchange.runtime
            self._readings.clear()
        name = (exchange.principal, exchange.task, model, raw)
        reading = self._readings.get(name)
        if reading is None:
            reading = self._decode(exchange, model, raw)
            if len(raw) <= _LONGEST_REMEMBERED:
                if len(self._readings) >= _MOST_REMEMBERED:
                    self._readings.clear()
                self._readings[name] = reading
        return reading

    def _decode(self, exchange: Exchange, model: str, raw: bytes) -> Reading:
        body: Body
        try:
            if exchange.task is Task.INFER:
                body = infer = self._infer_decoder.decode(raw)
                request = infer.request_for(model)
            else:
                body = routed = self._decoders[exchange.task].decode(raw)
                request = routed.request()
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The body does not fit the route: {error}.") from error
        except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
        _check_items(request, exchange.runtime.document.request.max_items)
        return Reading(
            body=body,
            request=request,
            charges=self._charges(exchange, request),
            failed=failed_usage(len(request.items)),
        )

    def _charges(self, exchange: Exchange, request: InferenceRequest) -> tuple[Charge, ...]:
        if exchange.principal is None:
            return ()
        limits = exchange.runtime.document.limits
        return charges_for(
            exchange.principal,
            requests=1,
            items=len(request.items),
            model=request.model,
            default_tenant_rules=limits.tenant,
            default_key_rules=limits.key,
        )


def _check_items(request: InferenceRequest, maximum: int) -> None:
    if not request.items:
        raise InvalidRequest("The input is empty; send at least one item.")
    if len(request.items) > maximum:
        raise PayloadTooLarge(
            f"{len(request.items)} items are more than {maximum}; send them in several requests."
        )
