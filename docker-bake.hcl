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
      patch_set = "d9b05ada0a3ef25e9e558992f759a5384096ede5ba4507cce1db9be06fa394a7" },
    { release = "0.20.1", base = "vllm/vllm-openai:v0.20.1", version = "0.20.1-kimi.eagle3.1",
      patch_set = "6dff9fb9da14db14512080b9e63cd1b817051c298964878413281abfb30c9f11" },
    { release = "0.20.2", base = "vllm/vllm-openai:v0.20.2", version = "0.20.2-kimi.eagle3.1",
      patch_set = "8b205165e9a146b8a96b5294f3c17627299e1c2191445a6064b923e9f98da85e" },
    { release = "0.21.0", base = "vllm/vllm-openai:v0.21.0", version = "0.21.0-kimi.eagle3.1",
      patch_set = "41264ac92819ed613073b12c06a6657177860e58d663c9c1293580177759494b" },
    { release = "0.22.0", base = "vllm/vllm-openai:v0.22.0", version = "0.22.0-kimi.eagle3.1",
      patch_set = "d223031fa3a37d4b366441632f1ee656902520db9712171279df358a711c995a" },
    { release = "0.22.1", base = "vllm/vllm-openai:v0.22.1", version = "0.22.1-kimi.eagle3.1",
      patch_set = "a96cb26414fcc9c1cbee832647a08010b12b7562856b6b80377223ca9b4364b0" },
    { release = "0.23.0", base = "vllm/vllm-openai:v0.23.0", version = "0.23.0-kimi.eagle3.1",
      patch_set = "abbffcfd7fe6abbce2dee89b3ebab691929c07a4164cf5ee13088b1a287c1fcc" },
    { release = "0.24.0", base = "vllm/vllm-openai:v0.24.0", version = "0.24.0-kimi.eagle3.1",
      patch_set = "e4b994e0bba04723fd162ba8fb7367f3952589bfd6b176e3a21c7a1320eb110c" },
    { release = "0.25.0", base = "vllm/vllm-openai:v0.25.0", version = "0.25.0-kimi.eagle3.1",
      patch_set = "216d07588b22b4dff88ce325324c78cda0318eacffe92c3f6de3eba55940e900" },
    { release = "0.25.1", base = "vllm/vllm-openai:v0.25.1", version = "0.25.1-kimi.eagle3.1",
      patch_set = "ec08ed5d01fadfd80741b7dfd7341cd5714d3de74521b5a2d53e7def5c4216ab" },
    { release = "0.26.0", base = "vllm/vllm-openai:v0.26.0", version = "0.26.0-kimi.eagle3.1",
      patch_set = "d5e3cb3e8efef9fcd194f888a6f2679a580b622eba256ad242eb093af74aab58" },
    { release = "0.27.0", base = "vllm/vllm-openai:v0.27.0", version = "0.27.0-kimi.eagle3.1",
      patch_set = "084e8f74369e12bc5013abe5579c4bcea375e54e2151a313ef9ab83dde06a5a3" },
    { release = "0.27.1", base = "vllm/vllm-openai:v0.27.1", version = "0.27.1-kimi.eagle3.1",
      patch_set = "9ec376a7709a8b7dd655eae37579e3924e7017d8335ad7e6834b4d88d81eeb31" },
    { release = "0.28.0", base = "vllm/vllm-openai:v0.28.0", version = "0.28.0-kimi.eagle3.1",
      patch_set = "7eea7d2589ec115ed5218d13fbd8edf9898824f01f7c4a1324a550837f8f2c06" },
    { release = "0.29.0", base = "vllm/vllm-openai:v0.29.0", version = "0.29.0-kimi.eagle3.1",
      patch_set = "47f379798888f7f721db8eb1adeaae8657269275ed8ef77b487cb467de5c6303" },
    { release = "0.30.0", base = "vllm/vllm-openai:v0.30.0", version = "0.30.0-kimi.eagle3.1",
      patch_set = "88c2d189f392e900e21b038f1ae5b9ebd9276f397cf85dfad1d8d40abc4a9b3b" },
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
