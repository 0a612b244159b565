# Two targets: `docker build --target cpu .`, which `docker build .` makes, too, and `docker build --target cuda .`.
# Neither holds torch: what serves needs no training code at run time. Bundles, galleries and keys are mounted, as
# deploy/docker-compose.yml and deploy/kubernetes do; the root file system may be read-only, with a tmpfs at /tmp.
#   docker run -p 127.0.0.1:7860:7860 --user "$(id -u):$(id -g)" --read-only --tmpfs /tmp \
#       -v ./bundles:/bundles:ro -v ./galleries:/galleries -v ./keys:/keys:ro retrieval:0.2.0

FROM python:3.11.9-slim-bookworm AS build
ENV PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
WORKDIR /src
RUN python -m venv /venv
COPY pyproject.toml README.md constraints.txt ./
# what the code needs is a layer of its own, which stays in the cache while only the code changes
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; \
print(*p['dependencies'], *e['server'], *e['serve'][1:], *e['verify'], sep='\n')" > needed.txt && pip install -r needed.txt
COPY index index
COPY retrieval retrieval
COPY training training
COPY serving serving
RUN pip install '.[serve,sources,verify]' && cd / && retrieval serve --help

# A venv leads to the interpreter it was made with, so that this one is made where it will run.
FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04 AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/gpu.txt
WORKDIR /src
RUN python3.11 -m venv /venv
COPY --from=build /src /src
RUN grep -vE '^(onnxruntime|faiss-cpu)==' constraints.txt > gpu.txt && pip install '.[serve-gpu,sources,verify]'

FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 retrieval && useradd --uid 10001 --gid 10001 --no-create-home retrieval
COPY --from=build-cuda /venv /venv
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GRADIO_ANALYTICS_ENABLED=0 ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/readyz', timeout=2)"]
ENTRYPOINT ["retrieval", "serve"]
CMD ["/bundles/current", "/galleries/current", "--host", "0.0.0.0", "--keys", "/keys/keys.json"]

FROM python:3.11.9-slim-bookworm AS cpu
RUN groupadd --gid 10001 retrieval && useradd --uid 10001 --gid 10001 --no-create-home retrieval
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GRADIO_ANALYTICS_ENABLED=0 ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/readyz', timeout=2)"]
ENTRYPOINT ["retrieval", "serve"]
CMD ["/bundles/current", "/galleries/current", "--host", "0.0.0.0", "--keys", "/keys/keys.json"]
