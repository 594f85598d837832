"""A checkpoint as far as it can be read in a second: JSON files and the headers of the weights.

Nothing here trusts a file: sizes are bounded before anything is read, every safetensors header must
describe its file completely and without overlap, and whatever is wrong ends in one
:class:`IntegrityFault` that names the file.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from patchset.errors import EnvironmentFault, IntegrityFault, Refused, UsageFault

# Bytes. Kimi-K2.5's headers have 0.6 MB each, its index 21 MB. The safetensors library itself stops
# at 100 MB of header.
JSON_LIMIT = 100_000_000
HEADER_LIMIT = 50_000_000
MAP_LIMIT = 8_000_000  # of one of the drafter's vocabulary maps
SHARD_LIMIT = 2_000
TENSOR_LIMIT = 100_000  # where each of them is kept
# The largest part of a shard that is worth reading at once with its header's length.
_FIRST_READ = 1 << 20

_MOST_DIMENSIONS = 8

# Bits of an element, as the safetensors format defines its types.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class Tensor(NamedTuple):
    """One entry of a header. ``size`` and ``start`` are in bytes, ``start`` from the file's."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str
    start: int


class Group(NamedTuple):
    """Like tensors: one, or the same one of every routed expert of a layer (``*`` in the name).

    ``size`` is that of each of the ``number``, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    number: int
    size: int


class Source(Protocol):
    """Where the files of a checkpoint lie."""

    @property
    def place(self) -> str:
        """How messages name it."""

    def sizes(self) -> Mapping[str, int]:
        """Name -> bytes of every regular file at the top level."""

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to, not including, ``end`` or the file's end."""


@dataclass(frozen=True)
class Folder:
    """A local folder, also one of links as the hub's cache makes them."""

    path: Path

    @property
    def place(self) -> str:
        """The path."""
        return str(self.path)

    def sizes(self) -> Mapping[str, int]:
        """See :class:`Source`; a link that leads nowhere is no file, unless it should be read."""
        found = {}
        for entry in sorted(os.scandir(self.path), key=lambda entry: entry.name):
            try:
                status = entry.stat()
            except OSError as fault:
                if not entry.name.endswith((".json", ".safetensors")):
                    continue
                raise IntegrityFault(f"{entry.path}: leads to no file: {fault.strerror}") from fault
            if stat.S_ISREG(status.st_mode):  # anything else could block, or never end
                found[entry.name] = status.st_size
        return found

    def read(self, name: str, start: int, end: int) -> bytes:
        """See :class:`Source`."""
        try:
            with open(self.path / name, "rb", buffering=0) as stream:
                stream.seek(start)
                return stream.read(end - start)
        except OSError as fault:
            raise EnvironmentFault(
                f"{self.path / name}: cannot be read: {fault.strerror}"
            ) from fault


@dataclass
class Checkpoint:
    """The files of one model. ``name`` is what the user called it."""

    name: str
    source: Source
    sizes: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = self.source.sizes()
        if "config.json" not in self.sizes:
            raise Refused(
                f"{self.source.place}: holds no config.json",
                next_step="Name the folder (or the hub id) of a model in the Hugging Face form.",
            )

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.json``."""
        return self._object("config.json")

    @cached_property
    def generation(self) -> dict[str, Any]:
        """``generation_config.json``, empty if there is none."""
        name = "generation_config.json"
        return self._object(name) if name in self.sizes else {}

    @cached_property
    def quantization(self) -> dict[str, Any]:
        """``hf_quant_config.json`` of ModelOpt exports, empty if there is none."""
        name = "hf_quant_config.json"
        return self._object(name) if name in self.sizes else {}

    @cached_property
    def index(self) -> Counter[str] | None:
        """Weight file -> tensors that ``model.safetensors.index.json`` puts there, if it exists.

        Taken out of the text by pattern: of the index nothing else counts, since vLLM loads what
        the files hold, and parsing it would take as long as parsing all headers.
        """
        name = "model.safetensors.index.json"
        if name not in self.sizes:
            return None
        raw = self._text(name)
        pieces = raw.split(b'.safetensors"')[:-1]
        found = Counter([piece.rpartition(b'"')[2] for piece in pieces])
        if not found or raw.lstrip()[:1] != b"{":
            raise IntegrityFault(f"{self._path(name)}: names no weight files")
        return Counter({os.fsdecode(x) + ".safetensors": count for x, count in found.items()})

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """The weight files that vLLM would load: those of the index, or all safetensors files."""
        there = sorted(name for name in self.sizes if name.endswith(".safetensors"))
        if self.index is None:
            # A second copy of the weights, which vLLM would skip, has no index either.
            found = [name for name in there if not name.startswith("consolidated")] or there
        else:
            found = sorted(self.index)
            if missing := [name for name in found if name not in self.sizes]:
                raise IntegrityFault(
                    f"{self.source.place}: the index names {len(found)} weight files, "
                    f"{len(missing)} of them are not there, the first is {_shown(missing[0])}",
                    next_step="Complete the download first.",
                )
        if len(found) > SHARD_LIMIT:
            raise IntegrityFault(f"{self.source.place}: has more than {SHARD_LIMIT} weight files")
        return tuple(found)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, each header checked.

        Raises :class:`IntegrityFault` for a header that does not describe its file, for a tensor
        that two files hold, and where index and headers disagree.
        """
        found: dict[str, Tensor] = {}
        for shard in self.shards:
            for name, tensor in read_header(self.source, shard, self.sizes[shard]).items():
                if name in found:
                    raise IntegrityFault(f"{self._path(shard)}: holds {_shown(name)} once more")
                found[name] = tensor
            if len(found) > TENSOR_LIMIT:
                raise IntegrityFault(f"{self.source.place}: more than {TENSOR_LIMIT} tensors")
        self._agree(len(found))
        return found

    def groups(self) -> list[Group]:
        """The same for a large checkpoint, alike experts of a layer taken together."""
        found: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()
        for shard in self.shards:
            where = self._path(shard)
            _, header = _raw_header(self.source, shard, self.sizes[shard])
            if not header:
                continue
            names = _EXPERT.sub(".experts.*.", "\n".join(header)).split("\n")
            if len(names) != len(header):
                raise IntegrityFault(f"{where}: the header has a name with a line break")
            try:
                # Without a line of Python for each of 200,000 tensors, which takes a second.
                entries = header.values()
                dtypes, shapes = map(_dtype, entries), map(tuple, map(_shape, entries))
                sizes = [end - begin for begin, end in map(_span, entries)]
                found.update(zip(names, dtypes, shapes, sizes, strict=True))
            except (KeyError, TypeError, ValueError) as fault:
                raise IntegrityFault(f"{where}: the header has an entry of no sense") from fault
        groups = []
        for (name, dtype, shape, size), number in found.items():
            _check_kind(name, self.source.place, dtype, shape, size)
            groups.append(Group(name, dtype, shape, number, size))
        self._agree(found.total())
        return groups

    def _agree(self, count: int) -> None:
        if self.index is not None and (listed := self.index.total()) != count:
            raise IntegrityFault(
                f"{self.source.place}: the index lists {listed} tensors, the files hold {count}",
                next_step="Download the checkpoint again.",
            )

    def values(self, tensor: Tensor) -> list[int]:
        """The numbers of an integer or boolean tensor of at most ``MAP_LIMIT`` bytes."""
        if tensor.dtype not in ("I64", "I32", "BOOL", "U8", "I8") or tensor.size > MAP_LIMIT:
            raise IntegrityFault(
                f"{self._path(tensor.file)}: a vocabulary map of type {tensor.dtype} and "
                f"{tensor.size} bytes"
            )
        raw = self.source.read(tensor.file, tensor.start, tensor.start + tensor.size)
        if len(raw) != tensor.size:
            raise IntegrityFault(f"{self._path(tensor.file)}: changed while it was read")
        found = array({"I64": "q", "I32": "i", "I8": "b"}.get(tensor.dtype, "B"), raw)
        if sys.byteorder == "big":
            found.byteswap()
        return found.tolist()

    def _path(self, name: str) -> str:
        return f"{self.source.place}/{name}"

    def _object(self, name: str) -> dict[str, Any]:
        raw = self._text(name)
        try:
            return _parse(raw, self._path(name))
        except IntegrityFault as fault:
            if word := _PYTHON_NUMBER.search(raw):
                raise Refused(
                    f"{self._path(name)}: holds {word[1].decode()}, which Python reads and JSON "
                    "does not have",
                    next_step="Write a number or null in its place.",
                ) from fault
            raise

    def _text(self, name: str) -> bytes:
        size = self.sizes[name]
        if size > JSON_LIMIT:
            raise IntegrityFault(f"{self._path(name)}: {size} bytes are no configuration")
        return self.source.read(name, 0, size)


def read_header(source: Source, name: str, size: int) -> dict[str, Tensor]:
    """The tensors that a safetensors file of ``size`` bytes holds.

    The format: eight bytes with the length n of the header (little-endian), n bytes of JSON that
    map names to dtype, shape and the begin and end of the data behind the header, then the data,
    which the entries must cover from the first byte to the last without overlap.
    """
    data, header = _raw_header(source, name, size)
    found = {}
    for key, entry in header.items():
        try:
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            found[key] = Tensor(entry["dtype"], shape, end - begin, name, data + begin)
        except (KeyError, TypeError, ValueError) as fault:
            raise IntegrityFault(
                f"{source.place}/{name}: the header's entry {_shown(key)} makes no sense"
            ) from fault
        _check_kind(key, f"{source.place}/{name}", *found[key][:3])
    return found


def _raw_header(source: Source, name: str, size: int) -> tuple[int, dict[str, dict[str, Any]]]:
    """Where the data starts, and the entries, whose data is known to cover the file."""
    where = f"{source.place}/{name}"
    first = source.read(name, 0, min(size, _FIRST_READ))
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or length > size - 8:
        raise IntegrityFault(
            f"{where}: is not a whole safetensors file: {size} bytes, of which the header alone "
            f"would take {length}",
            next_step="Download that file again.",
        )
    if length > HEADER_LIMIT:
        raise IntegrityFault(f"{where}: a header of {length} bytes; at most {HEADER_LIMIT} is read")
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += source.read(name, 8 + len(raw), 8 + length)
    header = _parse(raw, where)
    header.pop("__metadata__", None)
    if raw.count(b'"data_offsets"') > len(header):
        raise IntegrityFault(f"{where}: the header names a tensor twice")
    try:
        spans = sorted([entry["data_offsets"] for entry in header.values()])
        reached = 0
        for begin, end in spans:
            if begin != reached:
                raise IntegrityFault(
                    f"{where}: the header's tensors overlap or leave a gap at byte {reached} of "
                    "the data"
                )
            reached = end
        stop = 8 + length + reached
    except (KeyError, TypeError, ValueError) as fault:
        raise IntegrityFault(f"{where}: the header has an entry of no sense") from fault
    if stop != size:
        raise IntegrityFault(
            f"{where}: has {size} bytes, but its tensors end at byte {stop}",
            next_step="Download that file again.",
        )
    return 8 + length, header


_EXPERT = re.compile(r"\.experts\.\d+\.")
_PYTHON_NUMBER = re.compile(rb"[\[:,]\s*(-?Infinity|NaN)\s*[\],}]")
_dtype, _shape, _span = map(itemgetter, ("dtype", "shape", "data_offsets"))


def _check_kind(name: str, where: str, dtype: str, shape: tuple[int, ...], size: int) -> None:
    """Raise unless a tensor like that takes ``size`` bytes."""
    bits = DTYPE_BITS.get(dtype, 0) if isinstance(dtype, str) else 0
    for extent in shape[:_MOST_DIMENSIONS]:
        bits = bits * extent if type(extent) is int and extent >= 0 else -1
    if bits != size * 8 or not isinstance(dtype, str) or len(shape) > _MOST_DIMENSIONS:
        raise IntegrityFault(
            f"{where}: {_shown(name)} takes {size} bytes, which type {_shown(dtype)} and shape "
            f"{_shown(shape[:_MOST_DIMENSIONS])} do not"
        )
    if dtype not in DTYPE_BITS:
        raise IntegrityFault(f"{where}: {_shown(name)} is of the unknown type {_shown(dtype)}")


def _shown(value: object) -> str:
    """For a message: a name of a megabyte helps nobody."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object. The parser is bounded in depth."""
    try:
        found = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as fault:
        raise IntegrityFault(f"{where}: is not valid JSON: {fault}") from fault
    if not isinstance(found, dict):
        raise IntegrityFault(f"{where}: is not a JSON object")
    return found


def open_checkpoint(name: str) -> Checkpoint:
    """The checkpoint that ``name`` means: a folder, or an id on the Hugging Face hub.

    An id is looked up in the hub's local cache first and is used from there if complete. Raises
    :class:`UsageFault` for neither.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return Checkpoint(name, Folder(path))
        exists = os.path.lexists(path)
    except (OSError, ValueError) as fault:  # a loop of links, a name with a NUL byte
        raise UsageFault(f"{name!r}: cannot be looked at: {fault}") from fault
    if exists:
        raise UsageFault(f"{name}: is not a folder with a model")
    from advice import hub

    if not hub.is_id(name):
        raise UsageFault(f"{name}: is neither a folder nor a model's id on the hub (owner/name)")
    if (cached := hub.cached(name)) is not None:
        try:
            found = Checkpoint(name, Folder(cached))
            if found.shards:
                return found
        except (IntegrityFault, Refused):
            pass  # an incomplete download: the hub has the rest
    return Checkpoint(name, hub.Hub(name))
