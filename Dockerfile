# Two targets: `docker build --target cpu .` and `docker build --target cuda .`. Neither holds torch: what serves
# needs no training code at run time, and the bundle and the gallery are mounted.
#   docker run -p 7860:7860 -v ./bundles/shop:/bundle:ro -v ./galleries/shop:/gallery retrieval

FROM python:3.11.9-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
COPY pyproject.toml README.md constraints.txt ./
COPY index index
COPY retrieval retrieval
COPY training training
COPY serving serving
RUN pip install --no-cache-dir -c constraints.txt '.[serve]'

FROM python:3.11.9-slim-bookworm AS build-cuda
WORKDIR /src
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
COPY --from=build /src /src
RUN grep -vE '^(onnxruntime|faiss-cpu)==' constraints.txt > gpu.txt && pip install --no-cache-dir -c gpu.txt '.[serve-gpu]'

FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 retrieval
COPY --from=build-cuda /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 GRADIO_ANALYTICS_ENABLED=0
USER retrieval
WORKDIR /home/retrieval
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/readyz', timeout=2)"]
ENTRYPOINT ["retrieval", "serve", "/bundle", "/gallery", "--host", "0.0.0.0", "--no-page"]

FROM python:3.11.9-slim-bookworm AS cpu
RUN useradd --create-home --uid 10001 retrieval
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 GRADIO_ANALYTICS_ENABLED=0
USER retrieval
WORKDIR /home/retrieval
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/readyz', timeout=2)"]
ENTRYPOINT ["retrieval", "serve", "/bundle", "/gallery", "--host", "0.0.0.0", "--no-page"]
