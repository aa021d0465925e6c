"""A file of lines that is renamed when it is large; the oldest of its kind is deleted."""

from pathlib import Path


class RotatingFile:
    """Appends to `path`; keeps `keep` older ones as `path.1` (the newest) and on. Blocks."""

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep

    def append(self, lines: bytes) -> None:
        """Append whole `lines`; opened each time, so that the file may be moved or deleted."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            size = file.tell()
            if not size or size + len(lines) <= self._max_bytes:
                file.write(lines)
                return
        self._rotate()
        with self._path.open("ab") as file:
            file.write(lines)

    def _rotate(self) -> None:
        for number in range(self._keep, 1, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
