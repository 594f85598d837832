# Written by `make table`: do not edit by hand. See docs/image.md.
#
#   make image-context
#   BASE_DIGEST=sha256:... docker buildx bake v0_16_0
#
# The digest is that of the base image, for all machines:
#   docker buildx imagetools inspect vllm/vllm-openai:v0.16.0 --format '{{.Manifest.Digest}}'

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
      patch_set = "7bd047e4c352ef4bae1c2e935fc01a1add958e7ac9742dcf44760427928b0eb7" },
    { release = "0.15.1", base = "vllm/vllm-openai:v0.15.1", version = "0.15.1-kimi.eagle3.1",
      patch_set = "27f8150b341369089530aa889a3aee694b0832c88327f40ca8e75fec80641103" },
    { release = "0.16.0", base = "vllm/vllm-openai:v0.16.0", version = "0.16.0-kimi.eagle3.1",
      patch_set = "95c43cdc03f9f0c4f45a76bf3f85a6464dfce182c75d9edad889fead48d4e7c7" },
    { release = "0.17.0", base = "vllm/vllm-openai:v0.17.0", version = "0.17.0-kimi.eagle3.1",
      patch_set = "7d1f7244deb58483ade640d9a5878e26fc3144d7e33f50010564d3d4a18e94b1" },
    { release = "0.17.1", base = "vllm/vllm-openai:v0.17.1", version = "0.17.1-kimi.eagle3.1",
      patch_set = "4deb8bc74df00825d4ef83cf7cd722fd39b0d5cb1987bca51b85c5be0fb966ee" },
    { release = "0.18.0", base = "vllm/vllm-openai:v0.18.0", version = "0.18.0-kimi.eagle3.1",
      patch_set = "6ee7212eb34c413fffa83c2a31a3c64bcbc34f61e3bed7daeb1db89e5d8d8c10" },
    { release = "0.18.1", base = "vllm/vllm-openai:v0.18.1", version = "0.18.1-kimi.eagle3.1",
      patch_set = "c6c8f0469f5daba3e5421d583093513580beff5ec260be1904cfd219c8ab4743" },
    { release = "0.19.0", base = "vllm/vllm-openai:v0.19.0", version = "0.19.0-kimi.eagle3.1",
      patch_set = "1da93dd2e2d687e6511d9d847ea3a163979d57f8aa96b6ba573881628310b191" },
    { release = "0.19.1", base = "vllm/vllm-openai:v0.19.1", version = "0.19.1-kimi.eagle3.1",
      patch_set = "006693c4f160446e23dc35ce92077a6a2390805cf52455c856f18f974a2d227c" },
    { release = "0.20.0", base = "vllm/vllm-openai:v0.20.0", version = "0.20.0-kimi.eagle3.1",
      patch_set = "049b20df58d71532f7bab50a859d38715021ed76213953ac71d09039d138fd69" },
    { release = "0.20.1", base = "vllm/vllm-openai:v0.20.1", version = "0.20.1-kimi.eagle3.1",
      patch_set = "6ff4b75bacea8d07417f935c8bccdbf91c279b17c8dc30702576219b9cb1db8c" },
    { release = "0.20.2", base = "vllm/vllm-openai:v0.20.2", version = "0.20.2-kimi.eagle3.1",
      patch_set = "ef0f88da90a88591db4c0bf94e1732468f38fd953cd5c9702eaf50a6d11696ae" },
    { release = "0.21.0", base = "vllm/vllm-openai:v0.21.0", version = "0.21.0-kimi.eagle3.1",
      patch_set = "fcf11de6ca42f973a69bafe76a929179109e60564700f9e279e1ea3af5ac9419" },
    { release = "0.22.0", base = "vllm/vllm-openai:v0.22.0", version = "0.22.0-kimi.eagle3.1",
      patch_set = "d532e3ed46aba7a5537af09ca0e4c26e986ffcb03bb2b53c5494bcdc11258ee5" },
    { release = "0.22.1", base = "vllm/vllm-openai:v0.22.1", version = "0.22.1-kimi.eagle3.1",
      patch_set = "c6ad16b1eaf508f13fdec41303f1f2c2c2027775a514e21d13b9864415544676" },
    { release = "0.23.0", base = "vllm/vllm-openai:v0.23.0", version = "0.23.0-kimi.eagle3.1",
      patch_set = "3399c70b037c0e1c55ced58ed4969fad8576c273e71300239bc829c98b46ae7a" },
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
      patch_set = "af50bc649ed8145e1aa174e66de628e3bb57b3b2c94ec736311823ed24ac78a4" },
    { release = "0.31.0", base = "vllm/vllm-openai:v0.31.0", version = "0.31.0-kimi.eagle3.1",
      patch_set = "eb01ae318d556df4a0d6414974b20f97171a02d45ece72afa6ee3096020fec6d" },
    { release = "0.32.0", base = "vllm/vllm-openai:v0.32.0", version = "0.32.0-kimi.eagle3.1",
      patch_set = "91317e5995f0b8f855cfed2a8547c69c08f001f513ef90ebef8855e30d548180" },
    { release = "0.33.0", base = "vllm/vllm-openai:v0.33.0", version = "0.33.0-kimi.eagle3.1",
      patch_set = "c4fc10c748f28e67fc3ef6835bc953d4bf793af2227413a85c2ea8be953f7cc5" },
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
