# Written by `make table`: do not edit by hand. See docs/image.md.
#
#   make image-context
#   BASE_DIGEST=sha256:... docker buildx bake v0_16_0
#
# The digest is that of the base image, for all machines:
#   docker buildx imagetools inspect vllm/vllm-openai:v0.16.0 \
#     --format '{{printf "%s" .Manifest.Digest}}'

variable "BASE_DIGEST" {
  default = ""
}

variable "REPOSITORY" {
  default = "vllm-kimi-eagle3"
}

group "default" {
  targets = ["v0_15_0", "v0_15_1", "v0_16_0", "v0_17_0", "v0_17_1", "v0_18_0", "v0_18_1", "v0_19_0", "v0_19_1", "v0_20_0", "v0_20_1", "v0_20_2", "v0_21_0", "v0_22_0", "v0_22_1", "v0_23_0", "v0_24_0", "v0_25_0", "v0_25_1", "v0_26_0", "v0_27_0", "v0_27_1", "v0_28_0", "v0_29_0", "v0_30_0", "v0_31_0", "v0_32_0", "v0_33_0"]
}

target "image" {
  name = "v${replace(item.release, ".", "_")}"
  matrix = { item = [
    { release = "0.15.0", base = "vllm/vllm-openai:v0.15.0", version = "0.15.0-kimi.eagle3.1",
      patch_set = "8998bbb073ae9635fb3c203debe4d9e0c2ce1f42ac3520dfa800a1a3d899d3c4" },
    { release = "0.15.1", base = "vllm/vllm-openai:v0.15.1", version = "0.15.1-kimi.eagle3.1",
      patch_set = "e33fe0f5881ecde251c4710656662c42a8780b16b55270c30f039b889f3047ea" },
    { release = "0.16.0", base = "vllm/vllm-openai:v0.16.0", version = "0.16.0-kimi.eagle3.1",
      patch_set = "e18fc4039bbad4e1008382b861ca047f83bd9df5ee809a3fc4ea4ef2160ff0cf" },
    { release = "0.17.0", base = "vllm/vllm-openai:v0.17.0", version = "0.17.0-kimi.eagle3.1",
      patch_set = "7ab95f5b3b00e27f67ecc1c342f1f10aa490d59c3fde72671f286ad728bc3d30" },
    { release = "0.17.1", base = "vllm/vllm-openai:v0.17.1", version = "0.17.1-kimi.eagle3.1",
      patch_set = "71e8bf8c8d4d5c2c05814c8a03c12a87221ac0b7f6b66f27f530993d39a8ff33" },
    { release = "0.18.0", base = "vllm/vllm-openai:v0.18.0", version = "0.18.0-kimi.eagle3.1",
      patch_set = "4194edd6de9009a87639c18736ec87cd008faf829929d432f9648a74e3509b89" },
    { release = "0.18.1", base = "vllm/vllm-openai:v0.18.1", version = "0.18.1-kimi.eagle3.1",
      patch_set = "d047c623388991aca312aeb809775779e93dbdeea8863665c5227ecb543f95a5" },
    { release = "0.19.0", base = "vllm/vllm-openai:v0.19.0", version = "0.19.0-kimi.eagle3.1",
      patch_set = "6ae58a690116e33c2a536094bf70039e2fc220f6b8fa63b7b279ebca9c8ca32c" },
    { release = "0.19.1", base = "vllm/vllm-openai:v0.19.1", version = "0.19.1-kimi.eagle3.1",
      patch_set = "680600eabac809462a09c900a504e48979a0f82375bbbcb4574e7cbf154bd10a" },
    { release = "0.20.0", base = "vllm/vllm-openai:v0.20.0", version = "0.20.0-kimi.eagle3.1",
      patch_set = "cf463f70d5f4f4a8801412685e0df0b4a129a35f0e73d0e8d2554eeb393f0425" },
    { release = "0.20.1", base = "vllm/vllm-openai:v0.20.1", version = "0.20.1-kimi.eagle3.1",
      patch_set = "3d4f8badc0deee87c6a739bbfccd47f300bd74f05286338316b446a9b9ef8af7" },
    { release = "0.20.2", base = "vllm/vllm-openai:v0.20.2", version = "0.20.2-kimi.eagle3.1",
      patch_set = "e864fc02299149756f902bcb04888f07e8a6ccf831fc5256362df1292dce00cd" },
    { release = "0.21.0", base = "vllm/vllm-openai:v0.21.0", version = "0.21.0-kimi.eagle3.1",
      patch_set = "a9ddbc9c8c2063e1a9849d60dcfc6f87a89d0a466acdab0e81aaecde07a074e4" },
    { release = "0.22.0", base = "vllm/vllm-openai:v0.22.0", version = "0.22.0-kimi.eagle3.1",
      patch_set = "d361abd30b2e9d67fa4f0e2099ca3a292b7a5ad91bfc4c96fe4ab7cb26fa05bb" },
    { release = "0.22.1", base = "vllm/vllm-openai:v0.22.1", version = "0.22.1-kimi.eagle3.1",
      patch_set = "1bfd17f2786eb1cd9410df4711a5f1defba25574e8ccfd50e2faf07d1a4154b3" },
    { release = "0.23.0", base = "vllm/vllm-openai:v0.23.0", version = "0.23.0-kimi.eagle3.1",
      patch_set = "b276c3195681d401af772c183ab4fe6d13250c851f66bb93b5f5e4bb5b16fdb7" },
    { release = "0.24.0", base = "vllm/vllm-openai:v0.24.0", version = "0.24.0-kimi.eagle3.1",
      patch_set = "82fbe524d50923ef3c0b9263b61cade4db7f5d17b929b0ff62872cd37d52a792" },
    { release = "0.25.0", base = "vllm/vllm-openai:v0.25.0", version = "0.25.0-kimi.eagle3.1",
      patch_set = "db7fb7a6cf3efc822e1b0fe6c4cad35bc7f885d44c6bead5dfafc17c98f792c2" },
    { release = "0.25.1", base = "vllm/vllm-openai:v0.25.1", version = "0.25.1-kimi.eagle3.1",
      patch_set = "1b8c73a3531d4b0dd27b8c4f5d6ad7314bd3dc90a7c99c33b02bd415a2e7b3d1" },
    { release = "0.26.0", base = "vllm/vllm-openai:v0.26.0", version = "0.26.0-kimi.eagle3.1",
      patch_set = "b0064527091bd01f9b6c47594b8a7c234c89dcf9fdf345c333b0867943408211" },
    { release = "0.27.0", base = "vllm/vllm-openai:v0.27.0", version = "0.27.0-kimi.eagle3.1",
      patch_set = "47e13d67eea5b09741a72a40a419c2b385ed6d19ee8a32398030d2fb2e11d2f6" },
    { release = "0.27.1", base = "vllm/vllm-openai:v0.27.1", version = "0.27.1-kimi.eagle3.1",
      patch_set = "815a7d48e75e5c6c051efcb4753c71919f0fa68d9488e7b5839ac053cffd56fa" },
    { release = "0.28.0", base = "vllm/vllm-openai:v0.28.0", version = "0.28.0-kimi.eagle3.1",
      patch_set = "7d43121a69fe5c64bd36914c72522abafd55596424df14c70176cf6467199659" },
    { release = "0.29.0", base = "vllm/vllm-openai:v0.29.0", version = "0.29.0-kimi.eagle3.1",
      patch_set = "3211b44a5b7b9e323cffa96d49d9fe7beb69fc44fe284988662fea1e4889732d" },
    { release = "0.30.0", base = "vllm/vllm-openai:v0.30.0", version = "0.30.0-kimi.eagle3.1",
      patch_set = "b698af7048846bb145f40dcaef3462b3535a12c4eceb1fed1b147908554a52de" },
    { release = "0.31.0", base = "vllm/vllm-openai:v0.31.0", version = "0.31.0-kimi.eagle3.1",
      patch_set = "67d71fac7b2cae32becd7e1a8efbfaeaa2e6ddc959ed0fdc2fc85b49e41977a4" },
    { release = "0.32.0", base = "vllm/vllm-openai:v0.32.0", version = "0.32.0-kimi.eagle3.1",
      patch_set = "80e5c17df6be958f3adc00d9650a6ed4d462da4f934bde112805c67a95856cd9" },
    { release = "0.33.0", base = "vllm/vllm-openai:v0.33.0", version = "0.33.0-kimi.eagle3.1",
      patch_set = "d3d3f66b1d2890cb5e04790d514ff070a15060beb3c422da0b120a959685bedb" },
  ] }
  context   = "."
  platforms = ["linux/amd64", "linux/arm64"]
  tags      = ["${REPOSITORY}:${item.version}"]
  network   = "none"
  args = {
    VLLM_RELEASE  = item.release
    BASE_IMAGE    = item.base
    BASE_DIGEST   = BASE_DIGEST
    PATCH_SET     = item.patch_set
    IMAGE_VERSION = item.version
  }
}
