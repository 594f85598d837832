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
      patch_set = "f5026c0ccdd4b06e312f0740cce3ebfac3758689bc352406f754e3e54887fa66" },
    { release = "0.15.1", base = "vllm/vllm-openai:v0.15.1", version = "0.15.1-kimi.eagle3.1",
      patch_set = "00e674e18b6404597294025b9181a879add89f51b501d4d929bb44fc1587b4ba" },
    { release = "0.16.0", base = "vllm/vllm-openai:v0.16.0", version = "0.16.0-kimi.eagle3.1",
      patch_set = "e40927a8ab6b6d46d18554f92fcd49e1525cea5f78372e3a92eb3d367a9b4196" },
    { release = "0.17.0", base = "vllm/vllm-openai:v0.17.0", version = "0.17.0-kimi.eagle3.1",
      patch_set = "d13cd4d6f8823389fabbdb1cfacede8c1d364e32bb17379e2ce50e16ea50e097" },
    { release = "0.17.1", base = "vllm/vllm-openai:v0.17.1", version = "0.17.1-kimi.eagle3.1",
      patch_set = "949eb466b22950acfa91f4cbbac09d9c7db7943511e5932ad7d82d57aa66f510" },
    { release = "0.18.0", base = "vllm/vllm-openai:v0.18.0", version = "0.18.0-kimi.eagle3.1",
      patch_set = "4e4c482099b65648c55efab1bed1a7be69c2fc92714930c2ac6cfad2bac68c04" },
    { release = "0.18.1", base = "vllm/vllm-openai:v0.18.1", version = "0.18.1-kimi.eagle3.1",
      patch_set = "f9a6af8af5e952bf79faf9cd3b08c2f54b77024ae6c336f5fe1c69007bccec1a" },
    { release = "0.19.0", base = "vllm/vllm-openai:v0.19.0", version = "0.19.0-kimi.eagle3.1",
      patch_set = "f777b57e5acedb111c338e167dc0b4b21bf9822ce3f327204631f4c87e3f6a6f" },
    { release = "0.19.1", base = "vllm/vllm-openai:v0.19.1", version = "0.19.1-kimi.eagle3.1",
      patch_set = "daf5c090cda4538bec87363f69c603809aaf96743d4edb91c33148fbf3cf5f51" },
    { release = "0.20.0", base = "vllm/vllm-openai:v0.20.0", version = "0.20.0-kimi.eagle3.1",
      patch_set = "80f49dcd667a5e115478f2538478ca1bba9132b6c503b5db2e70c467a3ff9df5" },
    { release = "0.20.1", base = "vllm/vllm-openai:v0.20.1", version = "0.20.1-kimi.eagle3.1",
      patch_set = "a1cd3e5faedce526f01a4656a8259386afd62f10926689c234e427279c9ec256" },
    { release = "0.20.2", base = "vllm/vllm-openai:v0.20.2", version = "0.20.2-kimi.eagle3.1",
      patch_set = "a1596132b6c906fce12c857c02ca75bf95139153de256a5c81f94a31b1a53d6e" },
    { release = "0.21.0", base = "vllm/vllm-openai:v0.21.0", version = "0.21.0-kimi.eagle3.1",
      patch_set = "4f1cdbdcb7ae65e5e379a8d072068777c45b1fbe3bb0cb60dd200f184b2201cf" },
    { release = "0.22.0", base = "vllm/vllm-openai:v0.22.0", version = "0.22.0-kimi.eagle3.1",
      patch_set = "b8ba5bf6cd69fa468a0d9909d37b7a9e2c63f80dfccb17316ba80e5f635d21e4" },
    { release = "0.22.1", base = "vllm/vllm-openai:v0.22.1", version = "0.22.1-kimi.eagle3.1",
      patch_set = "ea5ad43fc8cb0e843019221d8cdb05513c51bac9c1bb2dd21990f81850e9c723" },
    { release = "0.23.0", base = "vllm/vllm-openai:v0.23.0", version = "0.23.0-kimi.eagle3.1",
      patch_set = "504760c2f999bc6204da1accf423878b47bf790a02532cd2bdb5a277a41af62a" },
    { release = "0.24.0", base = "vllm/vllm-openai:v0.24.0", version = "0.24.0-kimi.eagle3.1",
      patch_set = "40224d5ccf98a8ac1ac9f32a1c6998639de76540fb5bec26122de5720501a779" },
    { release = "0.25.0", base = "vllm/vllm-openai:v0.25.0", version = "0.25.0-kimi.eagle3.1",
      patch_set = "4a064754342f46d60310fca5e8f381f1bbc395b71cfe49c2e792082f68330e6f" },
    { release = "0.25.1", base = "vllm/vllm-openai:v0.25.1", version = "0.25.1-kimi.eagle3.1",
      patch_set = "c40884196c2b9a752c26bc080d16670660860e0c8c441bb562b9188aa9661d84" },
    { release = "0.26.0", base = "vllm/vllm-openai:v0.26.0", version = "0.26.0-kimi.eagle3.1",
      patch_set = "86645e85f625686b8bfe014a244b9f5560b19ae110217b0240915811d29cecee" },
    { release = "0.27.0", base = "vllm/vllm-openai:v0.27.0", version = "0.27.0-kimi.eagle3.1",
      patch_set = "8c323b3bb3c36f97b01ff19d96f79dd887048955cace190449860615766e6f0d" },
    { release = "0.27.1", base = "vllm/vllm-openai:v0.27.1", version = "0.27.1-kimi.eagle3.1",
      patch_set = "56815eff3efef832f5aea212da33bd96a85c3a4b2b22354c0ddb63b989d586dc" },
    { release = "0.28.0", base = "vllm/vllm-openai:v0.28.0", version = "0.28.0-kimi.eagle3.1",
      patch_set = "f0a9585dd1e164791d1b41795b7c6a92ed06a89337f2e104845e34cdf3ea1cb3" },
    { release = "0.29.0", base = "vllm/vllm-openai:v0.29.0", version = "0.29.0-kimi.eagle3.1",
      patch_set = "16afaabc63a99ea82dc701488fdfb29edb7adadabdb9e26311f4ace208a33942" },
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
