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
      patch_set = "cac226a4da9bd08c698cd69b3a60bd983bb97501ae2f94486e1c92538df5e5b1" },
    { release = "0.15.1", base = "vllm/vllm-openai:v0.15.1", version = "0.15.1-kimi.eagle3.1",
      patch_set = "7c3db9441ee4b927d7d61ba5b761670466aeafd012f2cc1914959c8a7d49b335" },
    { release = "0.16.0", base = "vllm/vllm-openai:v0.16.0", version = "0.16.0-kimi.eagle3.1",
      patch_set = "a76787e796d6c6c24cd1f311f123ad47702af55d97621c4694ed7247ca048ea1" },
    { release = "0.17.0", base = "vllm/vllm-openai:v0.17.0", version = "0.17.0-kimi.eagle3.1",
      patch_set = "b3f1a333f88d7c55cdea296345a8fe8db304fcf2525e1f241f6ced27bee2bd4e" },
    { release = "0.17.1", base = "vllm/vllm-openai:v0.17.1", version = "0.17.1-kimi.eagle3.1",
      patch_set = "6cf17fd522c7a6dad99a42718231d183825d33d973a2e40eaa03e9707d64af6f" },
    { release = "0.18.0", base = "vllm/vllm-openai:v0.18.0", version = "0.18.0-kimi.eagle3.1",
      patch_set = "4daadbf24cb0c51d40c6fe18921cb69bd5a3a8aff9b17339baecf567306c0cd8" },
    { release = "0.18.1", base = "vllm/vllm-openai:v0.18.1", version = "0.18.1-kimi.eagle3.1",
      patch_set = "083a883c3181bae919e2a89c2fc3ddfb5625c796ad5fa0d0016a28ff54f572d4" },
    { release = "0.19.0", base = "vllm/vllm-openai:v0.19.0", version = "0.19.0-kimi.eagle3.1",
      patch_set = "87c2447101742a07cb15caf19d7b86cc458acf9f53d6d280afd0969ce90dd689" },
    { release = "0.19.1", base = "vllm/vllm-openai:v0.19.1", version = "0.19.1-kimi.eagle3.1",
      patch_set = "1948985de126c73e906fcbff2cef8008c7d6d52ecc890a7e183a98e62fd3c047" },
    { release = "0.20.0", base = "vllm/vllm-openai:v0.20.0", version = "0.20.0-kimi.eagle3.1",
      patch_set = "75f4c1d79c6c3b97bab19ae4abf11fe6057f4da8ede595f5a70dedaeb2a51e85" },
    { release = "0.20.1", base = "vllm/vllm-openai:v0.20.1", version = "0.20.1-kimi.eagle3.1",
      patch_set = "4a4b88dab9586271cd481cef22af23714b91daba0f8d9d49a9db988ffe106e7d" },
    { release = "0.20.2", base = "vllm/vllm-openai:v0.20.2", version = "0.20.2-kimi.eagle3.1",
      patch_set = "92f16039d71baded0d8e48d596f7ca301d58fb87a570162e94c71ee0685664df" },
    { release = "0.21.0", base = "vllm/vllm-openai:v0.21.0", version = "0.21.0-kimi.eagle3.1",
      patch_set = "c18440baae50da98218d52b9648679aea94597f12377268fce19478e00288b1f" },
    { release = "0.22.0", base = "vllm/vllm-openai:v0.22.0", version = "0.22.0-kimi.eagle3.1",
      patch_set = "6e32d6ae2fceaeac9576dfa159393ddbd2bf4eec309ba0bc74dd86c61b9298ab" },
    { release = "0.22.1", base = "vllm/vllm-openai:v0.22.1", version = "0.22.1-kimi.eagle3.1",
      patch_set = "22c88f21d672b9a6643be5a6eabb49c26a79bd56e94eaab8921f2f3d98be764e" },
    { release = "0.23.0", base = "vllm/vllm-openai:v0.23.0", version = "0.23.0-kimi.eagle3.1",
      patch_set = "c6ad040e2c31ea4e412e5adfaed9eb8bf4874dc42f9c3c39d3ea5b7e5bc6dea7" },
    { release = "0.24.0", base = "vllm/vllm-openai:v0.24.0", version = "0.24.0-kimi.eagle3.1",
      patch_set = "fbc233c8e979d7e66ddca214965a219e26577ad46880410fd647a76df1733d80" },
    { release = "0.25.0", base = "vllm/vllm-openai:v0.25.0", version = "0.25.0-kimi.eagle3.1",
      patch_set = "990355a2542d1fc2934879526d52470260437f6efcd8361f4aa6916bcc896190" },
    { release = "0.25.1", base = "vllm/vllm-openai:v0.25.1", version = "0.25.1-kimi.eagle3.1",
      patch_set = "65a2b85e8f6537fdcd4454b5af0b40a7a4f726546c6d2d284a5b6f39f38b1ef7" },
    { release = "0.26.0", base = "vllm/vllm-openai:v0.26.0", version = "0.26.0-kimi.eagle3.1",
      patch_set = "47d30c58dcbfc5ac797174323b8cd2c0a5ace77bc0e8e42a3ce775fa735138df" },
    { release = "0.27.0", base = "vllm/vllm-openai:v0.27.0", version = "0.27.0-kimi.eagle3.1",
      patch_set = "09262f39c86e9205125758885a5870bbc40eed511c0cb18a48067d08eb1c8180" },
    { release = "0.27.1", base = "vllm/vllm-openai:v0.27.1", version = "0.27.1-kimi.eagle3.1",
      patch_set = "9eb4e80fe714d7f8c9998ebd197ca7fdb78628fcb9f0ea856e5c560c0e1b2c8b" },
    { release = "0.28.0", base = "vllm/vllm-openai:v0.28.0", version = "0.28.0-kimi.eagle3.1",
      patch_set = "e9a2c90d73a3f1e3e16709963e9e1b526acfcaf9f172919c46fab06a4488b06a" },
    { release = "0.29.0", base = "vllm/vllm-openai:v0.29.0", version = "0.29.0-kimi.eagle3.1",
      patch_set = "9cfa9976f5a6c6752c22a90fdb6b19524be3e71b1221c901a01d37f0b2ca2406" },
    { release = "0.30.0", base = "vllm/vllm-openai:v0.30.0", version = "0.30.0-kimi.eagle3.1",
      patch_set = "15a48bd3bbcacc589699a76e9fb801e0dcf1cd10543d712b053083ee33751966" },
    { release = "0.31.0", base = "vllm/vllm-openai:v0.31.0", version = "0.31.0-kimi.eagle3.1",
      patch_set = "1f601ba0f351a4806eb1fa1d37817de4d773301825a7fbf9ef3695fa4f175d78" },
    { release = "0.32.0", base = "vllm/vllm-openai:v0.32.0", version = "0.32.0-kimi.eagle3.1",
      patch_set = "724f3f984bcb8660b86887769b3c050e69bca59d583a487419ec6fedfe86b550" },
    { release = "0.33.0", base = "vllm/vllm-openai:v0.33.0", version = "0.33.0-kimi.eagle3.1",
      patch_set = "fe8b5696f0491c16f04689dd47453bb3e8e8826efd39e3da0b7c9bfeaf4a429a" },
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
