FROM localhost/debian:bookworm-slim
RUN useradd --uid 99 --no-create-home haproxy \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends haproxy wget \
    && rm -rf /var/lib/apt/lists/*
USER 99
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
