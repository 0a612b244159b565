# Three targets: `docker build --target cpu .`, which `docker build .` makes, too; `docker build --target cuda .`, which
# needs nothing of CUDA but the driver of the machine and has Faiss on the cores; and `docker build --target demo .`,
# which serves a demo in Gradio. `--build-arg EXTRAS=sources,verify,milvus` adds extras. No image holds torch: what
# serves needs no training code at run time. Bundles, galleries and keys are mounted, as deploy/docker-compose.yml and
# deploy/kubernetes do; the root file system may be read-only, with a tmpfs at /tmp.
#   docker run -p 127.0.0.1:7860:7860 --user "$(id -u):$(id -g)" --read-only --tmpfs /tmp \
#       -v ./bundles:/bundles:ro -v ./galleries:/galleries -v ./keys:/keys:ro retrieval:0.3.0.dev0
#   docker run -p 127.0.0.1:7861:7861 --user "$(id -u):$(id -g)" -v ./demo:/demo retrieval:demo

FROM python:3.11.9-slim-bookworm AS source
ENV PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /venv
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt constraints-gpu.txt ./
# what the code needs is a layer of its own in each build, which stays in the cache while only the code changes
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; \
[open(f'/{kind}.txt', 'w').write('\n'.join([*p['dependencies'], *e['server'], *e[kind][1:]])) for kind in ('serve', 'serve-gpu')]"

FROM source AS build-cpu
ARG EXTRAS=sources,verify
RUN pip install -c constraints.txt -r /serve.txt
COPY index index
COPY retrieval retrieval
COPY training training
COPY serving serving
RUN pip install -c constraints.txt ".[serve,$EXTRAS]" && cd / && retrieval serve --help

FROM build-cpu AS build-demo
RUN pip install -c constraints.txt ".[demo]"

FROM source AS build-cuda
ARG EXTRAS=sources,verify
RUN pip install -c constraints-gpu.txt -r /serve-gpu.txt
COPY index index
COPY retrieval retrieval
COPY training training
COPY serving serving
RUN pip install -c constraints-gpu.txt ".[serve-gpu,$EXTRAS]" && cd / && retrieval serve --help

FROM python:3.11.9-slim-bookworm AS run
RUN groupadd --gid 10001 retrieval && useradd --uid 10001 --gid 10001 --no-create-home retrieval
COPY LICENSE NOTICE /licenses/
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1
USER 10001:10001
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/readyz', timeout=2)"]
ENTRYPOINT ["retrieval", "serve"]
CMD ["/bundles/current", "/galleries/current", "--host", "0.0.0.0", "--keys", "/keys/keys.json"]

FROM run AS cuda
# what NVIDIA's container runtime gives to the container: the driver's libraries, and nvidia-smi
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /venv /venv

FROM run AS demo
# the server listens within the container only, and the demo, by Gradio's own variable, to what is published
ENV GRADIO_SERVER_NAME=0.0.0.0
EXPOSE 7861
COPY --from=build-demo /venv /venv
CMD ["/demo", "--examples", "/demo/examples", "--gradio"]

FROM run AS cpu
COPY --from=build-cpu /venv /venv
