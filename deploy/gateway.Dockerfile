# A gateway machine: worker, admin, shipper, billing and request log, chosen by the command.
# Holds no numpy and no model runtime.
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/sluicegate
COPY requirements/gateway.txt requirements/
RUN /opt/sluicegate/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/gateway.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY sluicegate/ sluicegate/
COPY backends/ backends/
COPY wire/ wire/
COPY bulk/ bulk/
RUN /opt/sluicegate/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/sluicegate/bin/pip uninstall --yes \
        editables hatchling pathspec pluggy tomlkit trove-classifiers setuptools pip

FROM python:3.11.13-slim-bookworm
ENV PATH=/opt/sluicegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLUICEGATE_CONFIG=/etc/sluicegate \
    SLUICEGATE_DATA_DIR=/var/lib/sluicegate
# Nothing is installed into what runs: pip of the base image goes, too.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.11/ensurepip \
        /usr/local/lib/python3.11/site-packages \
    && groupadd --gid 10001 sluicegate \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin sluicegate \
    && install --directory --owner 10001 --group 10001 --mode 0700 \
        /var/lib/sluicegate /var/lib/sluicegate-files /var/lib/sluicegate-ledger
COPY --from=build /opt/sluicegate /opt/sluicegate
COPY config/ /etc/sluicegate/
WORKDIR /var/lib/sluicegate
USER 10001:10001
EXPOSE 8080 8081 8001
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluicegate"]
CMD ["gateway"]
