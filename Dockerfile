# vLLM's official image with the series of its release: see docs/image.md. `make image RELEASE=...`
# gives the arguments; docker-bake.hcl has those of every release. Nothing is fetched but the base.
ARG VLLM_RELEASE
ARG BASE_IMAGE=vllm/vllm-openai:v${VLLM_RELEASE}
ARG BASE_DIGEST
FROM ${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}}

ARG VLLM_RELEASE
ARG BASE_IMAGE
ARG BASE_DIGEST
# What series.lock says; the build fails unless exactly that is what it applied.
ARG PATCH_SET
ARG IMAGE_VERSION
# No bytecode of what the steps below import, also not by the processes that they start.
ARG PYTHONDONTWRITEBYTECODE=1
# The base's own user and entry point, which the image keeps; an empty user would not be a user.
ARG BASE_USER=0
ARG BASE_ENTRYPOINT="[\"vllm\", \"serve\"]"

RUN --mount=type=bind,target=/context \
    python3 /context/tools/in_image.py user "$BASE_USER"
USER 0
RUN --mount=type=bind,target=/context \
    python3 /context/tools/in_image.py build --release "$VLLM_RELEASE" \
    --base "$BASE_IMAGE" --digest "$BASE_DIGEST" --patch-set "$PATCH_SET" \
    --version "$IMAGE_VERSION" --entrypoint "$BASE_ENTRYPOINT"
USER ${BASE_USER}
RUN ["/opt/vllm-kimi-eagle3/check"]

LABEL org.opencontainers.image.base.name=${BASE_IMAGE} \
      org.opencontainers.image.base.digest=${BASE_DIGEST} \
      org.opencontainers.image.version=${IMAGE_VERSION} \
      org.opencontainers.image.licenses="Apache-2.0" \
      vllm-kimi-eagle3.release=${VLLM_RELEASE} \
      vllm-kimi-eagle3.patch-set=${PATCH_SET} \
      vllm-kimi-eagle3.sbom="/opt/vllm-kimi-eagle3/sbom.cdx.json"
ENTRYPOINT ["/opt/vllm-kimi-eagle3/entrypoint"]
