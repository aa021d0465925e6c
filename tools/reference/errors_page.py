"""Writes the list of errors: the code and status of each, when it occurs, and what to do."""

from collections.abc import Iterator

from sluicegate.gateway.errors import GatewayError
from tools.reference.markdown import NOTE, cell, table

_HEAD = ("code", "status", "retryable", "when", "what to do")
_TEXT = """\
Both listeners return errors as `application/problem+json` (RFC 9457). `code` is stable: programs \
should use it, and never `detail`, which is for people.
Routes of other products return [errors in the product's \
format](../api.md#clients-of-other-products), with the same codes.

After a *retryable* error, the same request can succeed later; `Retry-After` says when to try \
again. Sluicegate's clients retry by themselves.
[Codes of items](../api.md#codes-of-items) explain why a single item failed.
"""
ADVICE = {
    "invalid_request": "Correct the field that `detail` names. Nothing was charged.",
    "task_not_supported": "Use another route or another model; `GET /v1/models` shows the tasks of"
    " each model.",
    "authentication_failed": "Send one header `Authorization: Bearer <key>` with a key that is"
    " neither revoked nor expired. Operators list keys with `sluicegate keys list`.",
    "budget_exhausted": "Ask an operator to raise the tenant's budget, or wait for the next month.",
    "permission_denied": "Use a model, route or origin that the key permits, or ask an operator to"
    " change the key.",
    "not_found": "Correct the path or the id.",
    "model_not_found": "Use a name from `GET /v1/models`. Operators check with `GET /admin/regions`"
    " whether a backend of the model is ready.",
    "method_not_allowed": "Use a method from the header `Allow`.",
    "request_timeout": "Send head and body without a pause, and check whether a proxy delays them.",
    "conflict": "Read the resource again, and decide again.",
    "idempotency_key_in_use": "Wait for `Retry-After`, then send the request again with the same"
    " key.",
    "precondition_failed": "Read the resource again and send its new `ETag`.",
    "payload_too_large": "Send fewer items, or shorter texts, in each request.",
    "expansion_too_large": "Send fewer or shorter inputs, labels or choices in each request.",
    "unsupported_content_encoding": "Use a compression from the response's header"
    " `Accept-Encoding`, or none.",
    "invalid_item": "Correct the item with the index `index`; `item_code` says why it failed. Send"
    " `on_error: continue` to get the results of the other items.",
    "idempotency_key_reused": "Use a new key for each new request.",
    "rate_limited": "Wait for `Retry-After`. With `x-should-retry: false`, send a smaller request"
    " or ask for a higher limit.",
    "header_fields_too_large": "Send fewer and shorter header fields.",
    "not_implemented": "Send `Content-Length`, or `Transfer-Encoding: chunked`.",
    "http_version_not_supported": "Use HTTP/1.1.",
    "not_cached": "Send the request without `only-if-cached` to have it computed.",
    "upstream_failed": "Send the request again, because another backend may succeed. If it fails"
    " again, an operator finds the cause in the backends' logs by the request's id.",
    "overloaded": "Wait for `Retry-After`. If the overload lasts, operators add backends, or mark"
    " traffic that can wait as `Sluicegate-Criticality: sheddable`.",
    "upstream_unavailable": "Wait for `Retry-After`. Operators check `GET /admin/regions`.",
    "deadline_exceeded": "Send fewer items, or allow more time with `X-Request-Timeout`. Computed"
    " results are cached, so a retry takes less time.",
    "event_log_unavailable": "Wait for `Retry-After`. Operators free space on the data directory's"
    " disk.",
    "dependency_unavailable": "Wait for `Retry-After`. Operators restore the ledger or the state"
    " Redis; `/health/ready` names the one that is down.",
    "invalid_configuration": "Correct the document at `file`, `line` and `field`. The previous"
    " configuration stays in use.",
    "models_broken": "Correct the model's folder as `detail` says. The earlier revisions are still"
    " served.",
    "plan_refused": "Choose revisions that the backends have. Nothing has changed.",
    "internal_error": "Send the request again, and report its `request_id`; the log has the cause.",
}
"""What to do about each error, by code."""


def errors_page() -> str:
    """Return the page.

    Raises:
        LookupError: an error is missing in `ADVICE`.
    """
    kinds = sorted(errors(), key=lambda error: (error.status, error.code))
    if unknown := [error.code for error in kinds if error.code not in ADVICE]:
        raise LookupError(f"add advice about {unknown} to `ADVICE` of `{__file__}`")
    body = table(_HEAD, map(_row, kinds))
    return f"# Errors\n\n{NOTE}\n{_TEXT}\n{body}".rstrip() + "\n"


def errors() -> Iterator[type[GatewayError]]:
    """Yield each error class that is raised.

    A base class that only groups error classes is never raised, so it is left out.
    """
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
