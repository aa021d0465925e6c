FROM localhost/debian:bookworm-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends \
        python3 python3-venv python-is-python3 \
    && rm -rf /var/lib/apt/lists/*
