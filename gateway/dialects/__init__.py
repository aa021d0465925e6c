"""Holds the dialects: the APIs of other products, over the gateway's own (native) routes.

To add a route of another product:

1. Write a module, such as `jina_voyage.py`, with a `Dialect`. For each `POST` that models answer,
   it has a `body_route`: a `DialectBody`, and a struct of the response. `base.py` has what dialects
   share, `gateway/api/schemas.py` the native bodies, and `stored_results.py` reads results.
2. List the dialect in `registry.py`.
3. Test what is special to it in `tests/unit/gateway/dialects`, such as in `test_jina_voyage.py`;
   `tests/support/dialects.py` has an API and a stored result of each task.
4. Add its row to the clients of other products in `docs/api.md`, and run `make reference`.

Keys, limits, cache, events and metrics are the same for every route. OpenAPI, the page in the
reference and its place in the site follow from the declaration. Tests send the example of every
route, leave fields out, and misspell them.

If the product has its own format of errors, write an `ErrorFormat`, such as `cohere_errors.py`. If
a response needs more than a struct, write an `InferenceRoute`, such as that in `openai.py`. Routes
that run no model are Litestar handlers in `Dialect.handlers`. If the product asks guards, write a
`HookBody`, such as that in `guards/portkey.py`. If the product has a Python client,
call the dialect with it in `tests/clients`.
"""
