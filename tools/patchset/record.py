"""RECORD, the list of a distribution's files: in wheels and in installed environments."""

from __future__ import annotations

import base64
import csv
import hashlib
import io

from patchset.errors import IntegrityFault


class Record:
    """The lines of a RECORD, edited in place so that untouched lines keep their bytes."""

    def __init__(self, content: bytes, where: str) -> None:
        self.where = where
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise IntegrityFault(f"{where}: is not UTF-8") from fault
        # pip writes CRLF, uv and setuptools LF
        self._end = "\r\n" if "\r\n" in text else "\n"
        self._lines: list[str] = []
        self._index: dict[str, int] = {}
        for line in text.split("\n"):
            if not line.strip():
                continue
            row = next(csv.reader([line.rstrip("\r")]))
            if len(row) != 3:
                raise IntegrityFault(f"{where}: has a line without exactly three fields: {line!r}")
            if row[0] in self._index:
                raise IntegrityFault(f"{where}: lists {row[0]} twice")
            self._index[row[0]] = len(self._lines)
            self._lines.append(line.rstrip("\r"))

    @property
    def paths(self) -> list[str]:
        """All listed paths, in order."""
        return list(self._index)

    def line(self, path: str) -> str | None:
        """The whole line of ``path`` as it stands."""
        return self._lines[self._index[path]] if path in self._index else None

    def checksum(self, path: str) -> str | None:
        """The sha256 of ``path`` in hex, as listed; ``None`` if none is."""
        line = self.line(path)
        value = next(csv.reader([line]))[1] if line else ""
        if not value.startswith("sha256="):
            return None
        try:
            return base64.urlsafe_b64decode(value.removeprefix("sha256=") + "==").hex()
        except ValueError:
            return None

    def position(self, path: str) -> int | None:
        """The 0-based line number of ``path``."""
        return self._index.get(path)

    def put(self, path: str, content: bytes) -> None:
        """Set hash and size of ``path``; a new path goes to the end."""
        self.put_line(path, _format(path, entry(content), str(len(content))))

    def put_line(self, path: str, line: str) -> None:
        """Set the whole line of ``path``; a new path goes to the end."""
        if path in self._index:
            self._lines[self._index[path]] = line
        else:
            self.insert(len(self._lines), path, line)

    def insert(self, position: int, path: str, line: str) -> None:
        """Put a new path's line at a position (or at the end, if there are not so many)."""
        position = min(position, len(self._lines))
        self._lines.insert(position, line)
        self._index = {key: at + (at >= position) for key, at in self._index.items()}
        self._index[path] = position

    def remove(self, path: str) -> None:
        """Drop the line of ``path``, if there is one."""
        if path in self._index:
            self._drop(self._index.pop(path))

    def rename(self, old: str, new: str) -> None:
        """Keep the line's hash and size under another path."""
        _, digest, size = next(csv.reader([self._lines[self._index[old]]]))
        position = self._index[old]
        self._lines[position] = _format(new, digest, size)
        self._index = {new if key == old else key: at for key, at in self._index.items()}

    def dump(self) -> bytes:
        """The bytes of the file."""
        return "".join(line + self._end for line in self._lines).encode("utf-8")

    def _drop(self, position: int) -> None:
        del self._lines[position]
        self._index = {key: at - (at > position) for key, at in self._index.items()}


def entry(content: bytes) -> str:
    """The hash field: ``sha256=`` and urlsafe base64 without padding."""
    raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + raw.decode("ascii").rstrip("=")


def path_of(line: str) -> str | None:
    """The path that one line lists; ``None`` if it is not one line of three fields."""
    if "\n" in line or "\r" in line:
        return None
    row = next(csv.reader([line]), [])
    return row[0] if len(row) == 3 else None


def _format(path: str, digest: str, size: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([path, digest, size])
    return out.getvalue()
