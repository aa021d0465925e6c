# Debian has no package of it: takes and counts requests, and holds nothing else of the original.
FROM localhost/debian:bookworm-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends python3 wget \
    && rm -rf /var/lib/apt/lists/*
COPY counting_server.py /usr/local/bin/
USER 472
ENTRYPOINT ["python3", "/usr/local/bin/counting_server.py"]
ENV PORTS="3000"
