FROM localhost/debian:bookworm-slim
RUN useradd --uid 101 --no-create-home nginx \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends nginx-light wget \
    && rm -rf /var/lib/apt/lists/* \
    && ln -sf /dev/stdout /var/log/nginx/access.log \
    && ln -sf /dev/stderr /var/log/nginx/error.log
USER 101
STOPSIGNAL SIGQUIT
CMD ["nginx", "-g", "daemon off;"]
