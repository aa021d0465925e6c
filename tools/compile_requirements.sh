#!/usr/bin/env bash
# Compiles requirements/*.txt: hashed, for every platform, without download addresses.
# Arguments go to `uv pip compile`, for example --upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
    echo "make lock needs \`uv\`: install it with \`pip install uv\`" >&2
    exit 1
fi

overrides=requirements/overrides.in
compile() {
    local output="requirements/$1.txt"
    shift
    echo "compiling $output"
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
        --override "$overrides" --output-file "$output" "$@"
}

# The largest set comes first: the versions found for it constrain all other sets.
pins=$(mktemp)
trap 'rm -f "$pins" "$pins.dev"' EXIT
compile dev pyproject.toml requirements/build.in requirements/demo.in \
    --extra gateway --extra zstd --extra postgresql --extra oidc --extra s3 --extra models --extra backend-cpu --extra openvino --extra otlp-grpc --extra grpc --extra bulk --extra dev "$@"
grep -oE '^[A-Za-z0-9._-]+==[^\\]+' requirements/dev.txt >"$pins"

compile demo pyproject.toml requirements/build.in requirements/demo.in \
    --extra gateway --extra zstd --extra grpc --extra backend-cpu --constraint "$pins" "$@"
compile gateway pyproject.toml requirements/build.in \
    --extra gateway --extra zstd --extra postgresql --extra oidc --extra s3 --extra otlp-grpc --extra grpc --constraint "$pins" "$@"
compile backend-cpu pyproject.toml requirements/build.in \
    --extra backend-cpu --extra models --extra otlp-grpc --constraint "$pins" "$@"
compile backend-openvino pyproject.toml requirements/build.in \
    --extra backend-cpu --extra models --extra openvino --extra otlp-grpc --constraint "$pins" "$@"
compile bulk pyproject.toml requirements/build.in \
    --extra backend-cpu --extra bulk --constraint "$pins" "$@"
# Bulk jobs on Ray, with the demo models.
compile ray pyproject.toml requirements/build.in requirements/demo.in \
    --extra backend-cpu --extra bulk --extra ray --constraint "$pins" "$@"
compile backend-gpu pyproject.toml requirements/build.in \
    --extra backend-gpu --extra models --extra otlp-grpc --constraint "$pins" "$@"
cp "$pins" "$pins.dev"
grep -oE '^[A-Za-z0-9._-]+==[^\\]+' requirements/backend-gpu.txt >>"$pins"
compile demo-gpu pyproject.toml requirements/build.in requirements/demo.in \
    --extra gateway --extra zstd --extra grpc --extra backend-gpu --constraint "$pins" "$@"
# The peers of `make bench NAME=peers` and `NAME=guards`, for this platform only, with
# versions that our own packages do not constrain.
for peer in litserve bentoml triton litellm infinity guards; do
    echo "compiling loadtests/peers/$peer/requirements.txt"
    own=loadtests/peers/$peer/overrides.in
    uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_35 \
        --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
        --override "$([ -f "$own" ] && echo "$own" || echo /dev/null)" \
        --output-file "loadtests/peers/$peer/requirements.txt" \
        "loadtests/peers/$peer/requirements.in" "$@" ||
        echo "left as it is: loadtests/peers/$peer/requirements.txt" >&2
done

# The clients of `make check NAME=clients`, for every platform, not constrained by our packages.
for client in tests/clients/*/requirements.in; do
    echo "compiling ${client%.in}.txt"
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
        --output-file "${client%.in}.txt" "$client" "$@" ||
        echo "left as it is: ${client%.in}.txt" >&2
done

# The programs that install packages.
compile pip requirements/pip.in "$@"

# The program that writes the lists of packages, not constrained by our packages.
compile sbom requirements/sbom.in "$@"

# The programs that build the site, not constrained by our packages.
compile docs requirements/docs.in "$@"
# The load generator of `make load`, which is a program in a wheel.
compile load requirements/load.in

# The parity check needs the framework that all other sets leave out, with CUDA libraries of its own.
overrides=/dev/null
compile parity requirements/parity.in --constraint "$pins.dev" "$@"
compile questions requirements/questions.in "$@"
# The package `gliner` needs an older `transformers`, and `gliner2` a newer one.
compile gliner requirements/gliner.in "$@"
compile gliner2 requirements/gliner2.in "$@"
