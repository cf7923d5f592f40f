# `specextend serve` with the default model, on the CPU.
#   docker build -t specextend .
#   docker run --rm -p 127.0.0.1:8080:8080 -e SPECEXTEND_API_KEY=secret specextend [-c 8192 ...]
# Another model: -v /srv/models:/models:ro -e LLAMA_ARG_MODEL=/models/model.gguf
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
    g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev \
    libboost1.81-dev libssl-dev libzmq3-dev
COPY . /source
RUN cmake --preset release -S /source && cmake --build /source/build/release \
    && cmake --install /source/build/release --prefix /product --strip

FROM debian:12-slim AS model
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip ca-certificates
COPY tools/fetch_model.py /
RUN python3 /fetch_model.py --folder /models

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libfmt9 libpcre2-8-0 libutf8proc2 libssl3 libzmq5 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /product/bin/specextend /usr/local/bin/
COPY --from=build /product/share/specextend /usr/local/share/specextend
COPY --from=model /models/*.gguf /models/
ENV LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_PORT=8080 LLAMA_ARG_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf
USER 10001:10001
EXPOSE 8080
# Nothing but bash is needed to ask for /health.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$LLAMA_ARG_PORT && \
    printf 'GET /health HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && grep -q ' 200 ' <&3"]
ENTRYPOINT ["specextend", "serve"]
