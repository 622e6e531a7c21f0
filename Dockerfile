# The image of kvlb: `docker build --tag kvlb/kvlb .` in this folder. Nothing that builds is in what comes out.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Without pip in it: the one outside installs there.
RUN python -m venv --without-pip /opt/kvlb
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hashing hashing
COPY indexer indexer
COPY balancer balancer
COPY simulations simulations
# Wheels alone, so that no compiler is asked for.
RUN pip wheel --no-deps --wheel-dir /wheels . \
  && pip --python /opt/kvlb/bin/python install --only-binary :all: "$(ls /wheels/kvlb-*.whl)[dns,epp,otlp,redis,uvloop,zstd]" \
  && /opt/kvlb/bin/python -m compileall -q /opt/kvlb/lib

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="kvlb" org.opencontainers.image.licenses="Apache-2.0"
# The base has pip for those who build on it; nothing here does.
RUN pip uninstall --yes --root-user-action=ignore pip \
  && groupadd --gid 65532 kvlb \
  && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kvlb
COPY --from=build /opt/kvlb /opt/kvlb
ENV PATH=/opt/kvlb/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 9002
ENTRYPOINT ["kvlb"]
CMD ["serve", "--config", "/etc/kvlb/kvlb.toml"]
