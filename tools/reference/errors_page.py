"""Writes the catalogue of errors: code, status, when each occurs, and what to do about it."""

from collections.abc import Iterator

from gateway.errors import GatewayError
from tools.reference.markdown import NOTE, cell, table

_HEAD = ("code", "status", "retryable", "when", "what to do")
_TEXT = """\
An error of the customer API, and of the operators' listener, is a document of the type \
`application/problem+json` (RFC 9457). `code` is stable: programs should look at it and never \
at `detail`, which is for people.
Routes in the form of another product have [errors in its \
form](../api.md#clients-of-other-products) with these codes.

After a *retryable* error the same request succeeds once its cause is gone; `Retry-After` says \
when to try again. The clients of this project do that by themselves.
[Codes of items](../api.md#codes-of-items) say why one text of a request cannot be answered.
"""
ADVICE = {
    "invalid_request": "Correct the request: `detail` names the field. Nothing was charged.",
    "task_not_supported": "Ask another route, or another model: `GET /v1/models` shows the tasks"
    " of each.",
    "authentication_failed": "Send `Authorization: Bearer <key>` once, with a key that is neither"
    " revoked nor expired. Operators list keys with `sluicegate keys list`.",
    "budget_exhausted": "Have an operator raise the tenant's budget, or wait for the next month.",
    "permission_denied": "Use a model, route or origin that the key covers, or have an operator"
    " change the key.",
    "not_found": "Correct the path or the id.",
    "model_not_found": "Use a name that `GET /v1/models` shows. Operators look whether a backend"
    " of the model is ready: `GET /admin/regions`.",
    "method_not_allowed": "Use a method that the header `Allow` names.",
    "request_timeout": "Send head and body without a pause; look for a proxy that holds them back.",
    "conflict": "Read the resource and decide anew.",
    "idempotency_key_in_use": "Wait for `Retry-After`, then send the request again with the same"
    " key.",
    "precondition_failed": "Read the resource again and send its new `ETag`.",
    "payload_too_large": "Send fewer items, or shorter texts, in each request.",
    "expansion_too_large": "Send fewer or shorter inputs, labels or choices in each request.",
    "unsupported_content_encoding": "Compress by what the header `Accept-Encoding` of the answer"
    " names, or not at all.",
    "invalid_item": "Correct the item that `index` names; `item_code` says why. Send"
    " `on_error: continue` to have the others answered.",
    "idempotency_key_reused": "Make a new key for each new request.",
    "rate_limited": "Wait for `Retry-After`; with `x-should-retry: false` send a smaller request,"
    " or have the limit raised.",
    "header_fields_too_large": "Send fewer and shorter header fields.",
    "not_implemented": "Send `Content-Length`, or `Transfer-Encoding: chunked`.",
    "http_version_not_supported": "Use HTTP/1.1.",
    "not_cached": "Send the request without `only-if-cached` to have it computed.",
    "upstream_failed": "Send it once more: another backend may answer. If it fails again, an"
    " operator finds the cause by the request's id in the backends' logs.",
    "overloaded": "Wait for `Retry-After`. If it lasts, operators add backends, or mark traffic"
    " that can wait as `Sluicegate-Criticality: sheddable`.",
    "upstream_unavailable": "Wait for `Retry-After`. Operators look at `GET /admin/regions`.",
    "deadline_exceeded": "Send fewer items, or ask for more time with `X-Request-Timeout`. What"
    " was computed is cached, so the next try takes less.",
    "event_log_unavailable": "Wait for `Retry-After`. Operators make room on the disk of the data"
    " directory.",
    "dependency_unavailable": "Wait for `Retry-After`. Operators bring back the ledger or the"
    " state Redis; `/health/ready` names which.",
    "invalid_configuration": "Correct the document where `file`, `line` and `field` say; what was"
    " in force still is.",
    "models_broken": "Correct the model's folder as `detail` says; the revisions before it serve"
    " on.",
    "plan_refused": "Choose revisions that the backends have; nothing has changed.",
    "internal_error": "Send it once more, and report it with its `request_id`: the log has its"
    " cause.",
}
"""What to do about each error."""


def errors_page() -> str:
    """Return the page.

    Raises:
        LookupError: an error has no advice.
    """
    kinds = sorted(errors(), key=lambda error: (error.status, error.code))
    if unknown := [error.code for error in kinds if error.code not in ADVICE]:
        raise LookupError(f"say in `ADVICE` of `{__file__}` what to do about {unknown}")
    body = table(_HEAD, map(_row, kinds))
    return f"# Errors\n\n{NOTE}\n{_TEXT}\n{body}".rstrip() + "\n"


def errors() -> Iterator[type[GatewayError]]:
    """Yield each error that is raised: the classes without other codes below them."""
    return (
        one
        for one in _below(GatewayError)
        if _is_raised(one) and not any(map(_is_raised, one.__bases__))
    )


def _is_raised(kind: type[GatewayError]) -> bool:
    return not any("code" in vars(error) for error in _below(kind))


def _below(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for error in kind.__subclasses__():
        if error.__module__ == GatewayError.__module__:
            yield error
            yield from _below(error)


def _row(error: type[GatewayError]) -> tuple[str, ...]:
    when = (error.__doc__ or error.title).strip().partition("\n")[0]
    retryable = "yes" if error.retryable else "no"
    return f"`{error.code}`", str(error.status), retryable, cell(when), cell(ADVICE[error.code])
