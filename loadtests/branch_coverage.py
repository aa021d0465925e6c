"""Counts which lines and branches of the product a run reaches.

A branch is a way from a line with a condition to the next line. Conditions whose two ways stay in
one line are not counted.
"""

import dis
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

Way = tuple[int, int]
"""The number of a line, and of the line that comes next; the first is 0 for the line alone."""
_CONDITIONS: Final = ("_IF_", "FOR_ITER")
_JUMPS: Final = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_ENDS: Final = ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE")


class Coverage:
    """Has the lines and branches of `packages` that this process and its children reached."""

    def __init__(self, root: Path, packages: tuple[str, ...]) -> None:
        self._root = root
        self._packages = packages
        self._beginnings = tuple(f"{root / 'sluicegate' / each}/" for each in packages)
        self._missing: dict[CodeType, set[Way]] = {}
        self._reached: dict[str, set[Way]] = defaultdict(set)

    def start(self) -> None:
        """Count from now on, also in forked processes."""
        sys.settrace(self._called)

    def save(self, folder: Path) -> None:
        """Add what this process has reached to the files of `folder`."""
        sys.settrace(None)
        for name, ways in self._reached.items():
            kept = folder / f"{name.replace('/', '-')}.json"
            former = msgspec.json.decode(kept.read_bytes(), type=list[Way]) if kept.exists() else []
            if not ways <= set(former):
                kept.write_bytes(msgspec.json.encode(sorted(ways.union(former))))

    def report(self, folder: Path) -> Iterator[str]:
        """Yield for each package the lines and the branches that were reached."""
        totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for package in self._packages:
            for file in sorted((self._root / package).rglob("*.py")):
                name = str(file.relative_to(self._root))
                kept = folder / f"{name.replace('/', '-')}.json"
                ways = msgspec.json.decode(kept.read_bytes()) if kept.exists() else []
                possible = set(_ways_of_all(compile(file.read_text(), name, "exec")))
                counts = _counts(possible, {(first, second) for first, second in ways})
                for key in (package, str(Path(*file.relative_to(self._root).parts[:2]))):
                    totals[key] = [a + b for a, b in zip(totals[key], counts, strict=True)]
        for name, (lines, of, branches, of_branches) in sorted(totals.items()):
            yield f"{name:34} {lines:6} of {of:6} lines {branches:6} of {of_branches:6} branches"

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            is_mine = code.co_filename.startswith(self._beginnings)
            missing = self._missing[code] = set(_ways(code)) if is_mine else set()
        if not missing:
            return None
        name = code.co_filename.removeprefix(f"{self._root}/sluicegate/")
        reached, last = self._reached[name], frame.f_lineno

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                line = frame.f_lineno
                ways = {(0, line), (last, line)} & missing
                reached.update(ways)
                missing.difference_update(ways)
                last = line
            return step

        return step


def _counts(possible: set[Way], reached: set[Way]) -> list[int]:
    counts = []
    for has_line_alone in (True, False):
        chosen = {way for way in possible if (way[0] == 0) is has_line_alone}
        counts += [len(chosen & reached), len(chosen)]
    return counts


def _ways_of_all(code: CodeType) -> Iterator[Way]:
    yield from _ways(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _ways_of_all(constant)


def _ways(code: CodeType) -> Iterator[Way]:
    """Yield the lines of a code object and its branches."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "RESUME"]
    at = {each.offset: index for index, each in enumerate(instructions)}
    for index, each in enumerate(instructions):
        line = _line(each)
        if not line:
            continue
        yield 0, line
        if any(name in each.opname for name in _CONDITIONS):
            nexts = [_next(instructions, at, i, line) for i in (index + 1, at[each.argval])]
            if all(nexts) and nexts[0] != nexts[1]:
                yield from ((line, following) for following in nexts)


def _next(instructions: list[dis.Instruction], at: dict[int, int], index: int, line: int) -> int:
    """Return the first other line from an instruction on; 0 if another condition comes first."""
    for _ in instructions:
        each = instructions[index]
        if _line(each) not in (0, line):
            return _line(each)
        if each.opname in _ENDS or any(name in each.opname for name in _CONDITIONS):
            return 0
        index = at[each.argval] if each.opname in _JUMPS else index + 1
    return 0


def _line(instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions.lineno or 0) if positions is not None else 0
