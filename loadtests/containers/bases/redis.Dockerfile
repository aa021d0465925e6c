FROM localhost/debian:bookworm-slim
RUN groupadd --gid 1000 redis && useradd --uid 999 --gid 1000 --no-create-home redis \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends redis-server redis-tools \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 999 --group 1000 /data
WORKDIR /data
CMD ["redis-server"]
