"""Serves the operators' route that reloads the backends' model repositories."""

import asyncio
import contextlib
from typing import Any

import msgspec
from litestar import Controller, Request, Response, post
from litestar.di import NamedDependency

from gateway.admin.openapi import DONE, PENDING
from gateway.api.openapi_parts import PROBLEM_JSON, Content, Operation
from gateway.errors import DependencyUnavailable, GatewayError, ModelsBroken
from gateway.http.problem_details import MEDIA_TYPE, problem
from gateway.ledger.ledger import Ledger
from gateway.operations.fleet_view import reported_backends
from gateway.operations.models import (
    RELOAD_TIMEOUT,
    BrokenModelsProblem,
    ReloadResult,
    audit_outcome,
    changes,
    explain_problems,
)
from gateway.operations.operators import Operator, Role
from gateway.runtime.control import Control, Topic


class ModelsController(Controller):
    """Reloads model repositories."""

    path = "/admin/models"

    @post(
        "/reload",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="reload_models",
            summary="Reload the backends' model repositories",
            tag="operations",
            errors=(ModelsBroken, DependencyUnavailable),
            answers={
                200: (Content(type=ReloadResult, summary=DONE),),
                202: (Content(type=ReloadResult, summary=PENDING),),
                422: (
                    Content(
                        type=BrokenModelsProblem,
                        media=PROBLEM_JSON,
                        summary="A model is broken",
                    ),
                ),
            },
        ),
    )
    async def reload(
        self,
        request: Request[Any, Any, Any],
        control: NamedDependency[Control],
        ledger: NamedDependency[Ledger],
        operator: NamedDependency[Operator],
    ) -> Response[ReloadResult | dict[str, Any]]:
        """Reload the backends' model repositories.

        - 200: every worker knows the new revisions, and no request uses a replaced revision any
          more.
        - 202: some workers do not know the new revisions yet.
        - 422: a model is broken. Its former revision is still served. All other models are
          reloaded.
        """
        before = await reported_backends(control)
        # The audit entry comes first, so that there is no change without an entry.
        await asyncio.to_thread(ledger.audit, operator.name, "models.reload", "")
        version = await control.touch(Topic.MODELS)
        workers = await control.wait_for_workers(Topic.MODELS, version, within=RELOAD_TIMEOUT)
        backends = changes(before, await reported_backends(control))
        broken = any(backend.problems for backend in backends.values())
        # The audit log already has an entry for the reload. Only the entries for its outcome may be
        # missing.
        with contextlib.suppress(GatewayError):
            await asyncio.to_thread(audit_outcome, ledger.audit, operator.name, backends)
        live = not broken and all(outcome == "ok" for outcome in workers.values())
        reloaded = ReloadResult(live=live, workers=workers, backends=backends)
        if not broken:
            return Response(reloaded, status_code=200 if live else 202)
        problems = {name: backend.problems for name, backend in backends.items()}
        error = ModelsBroken(explain_problems(problems))
        body = msgspec.to_builtins(problem(error, str(request.scope["state"]["request_id"])))
        return Response(
            body | msgspec.to_builtins(reloaded),
            status_code=error.status,
            media_type=MEDIA_TYPE.decode(),
        )
