"""Defines what an operation acts on, and on whose behalf."""

from typing import TYPE_CHECKING

import msgspec

from gateway.operations.operators import Operator

if TYPE_CHECKING:  # commands import operations for their declarations, and need none of these
    from gateway.ledger.ledger import Ledger
    from gateway.operations.active_document import ActiveDocumentReader
    from gateway.operations.backend_calls import BackendCalls
    from gateway.operations.model_names import ModelNameValidator
    from gateway.operations.operator_keys import OperatorKeys
    from gateway.operations.publishing import Publisher
    from gateway.redis.connect import PipelinedClient
    from gateway.runtime.control import Control
    from gateway.runtime.recovery import Recovery
    from gateway.settings import Settings


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """The operator who carries out an operation, and the objects that operations use."""

    operator: Operator
    request_id: str
    settings: "Settings"
    control: "Control"
    ledger: "Ledger"
    cache_redis: "PipelinedClient"
    publisher: "Publisher"
    recovery: "Recovery"
    operator_keys: "OperatorKeys"
    active: "ActiveDocumentReader"
    backends: "BackendCalls"
    model_names: "ModelNameValidator"
