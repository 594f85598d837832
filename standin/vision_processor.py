"""Image processor shipped inside the stand-in checkpoint (loaded through `auto_map`).

The releases before 0.32 take Kimi-K2.5's image processor from the checkpoint and use three things
of it: `preprocess`, `media_tokens_calculator` and `num_frames_per_chunk`. This one does the same
job as the published processor in its smallest form: resize, cut into 14x14 patches, normalise.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature


class StandinVisionProcessor(BaseImageProcessor):
    """Turns vision chunks into patches for a tower with 14x14 patches merged 2x2.

    A vision chunk is `{"type": "image", "image": PIL.Image}` or
    `{"type": "video_chunk", "video_chunk": list[PIL.Image]}`.
    """

    model_input_names: ClassVar = ["pixel_values", "grid_thws"]

    def __init__(
        self,
        patch_size: int = 14,
        merge_size: int = 2,
        patch_limit: int = 64,
        num_frames_per_chunk: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.merge_size = merge_size
        self.patch_limit = patch_limit
        self.num_frames_per_chunk = num_frames_per_chunk

    @staticmethod
    def _frames(chunk: dict[str, Any]) -> list[Any]:
        return [chunk["image"]] if chunk["type"] == "image" else list(chunk["video_chunk"])

    def _grid(self, image: Any) -> tuple[int, int]:
        """Rows and columns of patches for `image`: multiples of `merge_size`, at most
        `patch_limit` patches (at least one merged patch)."""
        width, height = image.size
        unit = self.patch_size * self.merge_size
        most = self.patch_limit // self.merge_size**2
        scale = min(1.0, math.sqrt(most * unit * unit / (width * height)))
        rows = max(1, min(most, int(height * scale / unit)))
        cols = max(1, min(most // rows, int(width * scale / unit)))
        return rows * self.merge_size, cols * self.merge_size

    def media_tokens_calculator(self, chunk: dict[str, Any]) -> int:
        """Number of placeholder tokens that `chunk` takes in the prompt (frames are pooled)."""
        rows, cols = self._grid(self._frames(chunk)[0])
        return rows * cols // self.merge_size**2

    def split_video_chunks(self, video: list[Any]) -> list[dict[str, Any]]:
        """Cut a list of frames into video chunks of at most `num_frames_per_chunk`."""
        step = self.num_frames_per_chunk
        return [
            {"type": "video_chunk", "video_chunk": list(video[i : i + step])}
            for i in range(0, len(video), step)
        ]

    def preprocess(
        self, vision_chunks: list[dict[str, Any]], return_tensors: str = "pt", **kwargs: Any
    ) -> BatchFeature:
        """`pixel_values` [patches, 3, patch, patch] and `grid_thws` [chunks, 3] (t, h, w)."""
        size = self.patch_size
        patches: list[torch.Tensor] = []
        grids: list[list[int]] = []
        for chunk in vision_chunks:
            frames = self._frames(chunk)
            rows, cols = self._grid(frames[0])
            for frame in frames:
                image = frame.convert("RGB").resize((cols * size, rows * size))
                pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 127.5 - 1.0)
                pixels = pixels.reshape(rows, size, cols, size, 3).permute(0, 2, 4, 1, 3)
                patches.append(pixels.reshape(rows * cols, 3, size, size))
            grids.append([len(frames), rows, cols])
        data = {"pixel_values": torch.cat(patches), "grid_thws": torch.tensor(grids)}
        return BatchFeature(data=data, tensor_type=return_tensors)
