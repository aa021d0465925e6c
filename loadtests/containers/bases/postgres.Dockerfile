FROM localhost/debian:bookworm-slim
RUN groupadd --gid 70 postgres \
    && useradd --uid 70 --gid 70 --home-dir /var/lib/postgresql --create-home postgres \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends locales postgresql-common \
    && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
    && apt-get install -y -qq --no-install-recommends postgresql-15 \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 70 --group 70 --mode 0700 /var/lib/postgresql/data \
    && install --directory --owner 70 --group 70 /var/run/postgresql
COPY --chmod=755 postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
