# syntax=docker/dockerfile:1
# The image of the platform: `docker build --tag registry.example.com/gpu-runtime:0.1.0 .`
# It has the same content as the image of the local cluster: Python as `python`, the packages of locks/runtime.txt, and
# `gpu-runtime`.
# To pin the base image, name it by digest: `--build-arg PYTHON_IMAGE=python@sha256:...`.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY locks/ locks/
# The dependencies come first, because they rarely change. --no-deps: the lock file contains all dependencies, and no
# other package may be installed.
RUN pip install --quiet --no-deps --no-compile --only-binary=:all: --require-hashes --prefix=/install \
      --requirement locks/runtime.txt
# The build backend, with locked versions.
RUN awk '/^[a-z]/ {selected = /^(hatchling|packaging|pathspec|pluggy|trove-classifiers)==/} selected' locks/dev.txt > backend.txt \
    && pip install --quiet --no-deps --only-binary=:all: --require-hashes --requirement backend.txt
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
RUN pip install --quiet --no-deps --no-compile --no-build-isolation --prefix=/install .

FROM ${PYTHON_IMAGE}
COPY --from=build /install/ /usr/local/
# Compile all packages and the standard library. Containers have a read-only root file system. Without bytecode in the
# image, Python would compile at every start.
RUN python -m compileall -q --invalidation-mode=unchecked-hash "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && gpu-runtime --version
ENV PYTHONUNBUFFERED=1
USER 10001:10001
CMD ["gpu-runtime", "--help"]
