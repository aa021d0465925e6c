FROM localhost/debian:bookworm-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 65534 --group 65534 /prometheus
USER 65534
ENTRYPOINT ["prometheus"]
