# One image for all of HAP-VR's processes: Dagster's web server and daemon, MLflow, and the verbs of `hapvr`.
#     docker build --tag hapvr .
# compose.yaml runs a team's set-up of it; docs/scale.md says how. PyAV brings FFmpeg, so no system package is needed.
# The networks for copies are left out, as their licence lets nobody pass them on. An image with them is for you alone:
#     docker build --build-arg COPIES=requirements-copies.txt --tag hapvr .
# Images are named by tag, so that `docker build --pull` brings their security fixes. A digest is given from outside:
#     docker build --build-context python:3.11-slim=docker-image://python@sha256:... .
FROM python:3.11-slim

WORKDIR /srv/hapvr
# First what changes rarely, so that a change of the code does not install the libraries again.
COPY requirements.lock ./
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.lock
ARG COPIES=
COPY requirements-copies.txt ./
RUN if [ -n "$COPIES" ]; then \
    pip install --no-cache-dir --no-deps --require-hashes --ignore-requires-python --requirement "$COPIES"; fi
COPY . .
# The user of the processes cannot write bytecode there: each of them would compile what it imports.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && python -m compileall -q hapvr assets pipelines \
    && useradd --create-home hapvr \
    && mkdir /data && chown -R hapvr /data dagster_home

USER hapvr
ENV DAGSTER_HOME=/srv/hapvr/dagster_home DAGSTER_DISABLE_TELEMETRY=1 MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=1
VOLUME /data
EXPOSE 3000 8000
# Of the search service, which answers before there is an index; /ready says whether there is one.
HEALTHCHECK --start-period=2m CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
# `make ui` in a container; publish the port to 127.0.0.1 only, or behind a proxy with a login.
CMD ["python", "-m", "pipelines.ui", "--host", "0.0.0.0", "--allow-remote"]
