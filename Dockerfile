# syntax=docker/dockerfile:1
# The platform's image, for any builder: `docker build --tag registry.example.com/gpu-runtime:0.1.0 .`
# It has what the local cluster's image has: Python as `python`, the packages of locks/runtime.txt, and `gpu-runtime`.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY locks/ locks/
# First what seldom changes. --no-deps: the lock is complete, and what it does not name does not belong here.
RUN pip install --quiet --no-deps --no-compile --only-binary=:all: --require-hashes --prefix=/install \
      --requirement locks/runtime.txt
# The build backend, as locked as the rest.
RUN awk '/^[a-z]/ {wanted = /^(hatchling|packaging|pathspec|pluggy|trove-classifiers)==/} wanted' locks/dev.txt > backend.txt \
    && pip install --quiet --no-deps --only-binary=:all: --require-hashes --requirement backend.txt
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
RUN pip install --quiet --no-deps --no-compile --no-build-isolation --prefix=/install .

FROM python:${PYTHON_VERSION}-slim
COPY --from=build /install/ /usr/local/
# Bytecode, of Python's own library, too: containers have a read-only root, and would compile at every start.
RUN python -m compileall -q --invalidation-mode=unchecked-hash "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && gpu-runtime --version
ENV PYTHONUNBUFFERED=1
USER 10001:10001
CMD ["gpu-runtime", "--help"]
