FROM localhost/debian:bookworm-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends haproxy wget \
    && rm -rf /var/lib/apt/lists/* \
    && usermod --uid 99 haproxy
USER 99
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
