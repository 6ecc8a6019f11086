"""Checks users' own patterns: that they can be read, and that no text makes them slow.

Python's engine tries alternatives one after another. What it may cost is therefore read off the parsed pattern, path by
path, a path being one choice of its alternatives. A pattern passes if in each of its paths

* a repeat of many characters either ends the path, so that it keeps what it has read, or stands behind something that
  it cannot itself read (`EMP-\\d+-x`: no `-` is a digit), so that no character is read from many starts;
* what follows such a repeat begins with something that it cannot read, or there is one such repeat only;
* the bounded repeats have few ways to share a piece of text among them.

Groups are repeated a fixed number of times, or hold plain sequences. This refuses some patterns that are harmless.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_PATTERNS = 64
MOST_BYTES = 1024

# A repeat with more choices than this counts as one of many characters.
_SHORT_RANGE = 64
_MOST_STEPS = 1024
_MOST_PATHS = 512
_MOST_UNROLLED = 16

# Characters of Latin-1 are told apart; of all others, letters, digits, blanks and the rest.
_LATIN = 256
_LETTERS, _DIGITS, _BLANKS, _REST = range(_LATIN, _LATIN + 4)
_OTHERS = frozenset((_LETTERS, _DIGITS, _BLANKS, _REST))
_ALL = frozenset(range(_LATIN)) | _OTHERS
_WORD = frozenset(code for code in range(_LATIN) if chr(code).isalnum() or chr(code) == "_") | {_LETTERS, _DIGITS}
_CATEGORIES = {
    ops.CATEGORY_DIGIT: frozenset(map(ord, "0123456789")) | {_DIGITS},
    ops.CATEGORY_SPACE: frozenset(code for code in range(_LATIN) if chr(code).isspace()) | {_BLANKS},
    ops.CATEGORY_WORD: _WORD,
}
_CATEGORIES |= {
    ops.CATEGORY_NOT_DIGIT: _ALL - _CATEGORIES[ops.CATEGORY_DIGIT],
    ops.CATEGORY_NOT_SPACE: _ALL - _CATEGORIES[ops.CATEGORY_SPACE],
    ops.CATEGORY_NOT_WORD: _ALL - _WORD,
}
# Letters of Latin-1 that are a case of some letter beyond.
_CASES_OF_OTHERS = frozenset(map(ord, "kKsSåÅßµÿ"))
_REFUSED = {
    ops.GROUPREF: "a reference to a group",
    ops.GROUPREF_EXISTS: "a condition on a group",
    ops.ASSERT: "a lookaround",
    ops.ASSERT_NOT: "a lookaround",
    ops.ATOMIC_GROUP: "an atomic group",
    ops.POSSESSIVE_REPEAT: "a possessive repeat",
}


_ASCII = "uses the flag `a`, which RE2 does not know; write out the characters instead"


class _RefusedError(Exception):
    """What is wrong, as the end of a sentence that begins with the pattern."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Characters of a set, `low` to `high` of them; or an assertion, which reads none."""

    characters: frozenset[int]
    low: int
    high: int
    assertion: object = None

    @property
    def long(self) -> bool:
        return self.high - self.low > _SHORT_RANGE

    @property
    def optional(self) -> bool:
        return self.low == 0 and self.assertion is None


_Path = tuple[_Step, ...]


def compile_patterns(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """The patterns, compiled. ValueError names the first that cannot be taken, and says why."""
    if len(patterns) > MOST_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns are given; at most {MOST_PATTERNS} may be: join some with `|`.")
    return tuple(_compile(number, pattern) for number, pattern in enumerate(patterns, 1))


def _compile(number: int, pattern: str) -> re.Pattern[str]:
    try:
        return _checked(pattern)
    except re.error as error:
        reason = f"is no regular expression: {error}"
    except (RecursionError, OverflowError):
        reason = "is nested too deeply or repeats too often"
    except _RefusedError as refused:
        reason = str(refused)
    raise ValueError(f"Pattern {number} (`{_short(pattern)}`) {reason}.")


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 80 else pattern[:79] + "…"


def _checked(pattern: str) -> re.Pattern[str]:
    if (size := len(pattern.encode("utf-8", "surrogatepass"))) > MOST_BYTES:
        raise _RefusedError(f"has {size} bytes; at most {MOST_BYTES} may be: split it into several")
    if "[[:" in pattern:
        raise _RefusedError("uses a POSIX class; write `a-z`, `0-9` or `\\w` instead")
    tree = parser.parse(pattern)
    if tree.getwidth()[0] == 0:
        raise _RefusedError("matches where there is nothing; let it require at least one character")
    if tree.state.flags & re.ASCII:
        raise _RefusedError(_ASCII)
    paths = _paths(tree, tree.state.flags)
    for path in paths:
        _check_path(path)
    if sum(map(_steps, paths)) > _MOST_STEPS:
        raise _RefusedError("has repeats that can share a text in too many ways; bound them more tightly")
    return re.compile(pattern)


# --- paths ---


def _paths(tree: Iterable[tuple[Any, Any]], flags: int) -> list[_Path]:
    """All paths through a sequence."""
    paths: list[_Path] = [()]
    for op, argument in tree:
        steps = _choices(op, argument, flags)
        if len(paths) * len(steps) > _MOST_PATHS:
            raise _RefusedError(f"has more than {_MOST_PATHS} combinations of alternatives; split it into several")
        paths = [before + after for before, after in itertools.product(paths, steps)]
    return paths


def _choices(op: Any, argument: Any, flags: int) -> list[_Path]:
    if op in _REFUSED:
        raise _RefusedError(f"uses {_REFUSED[op]}, which can take too long; write it without")
    if op is ops.AT:
        by_line = argument is ops.AT_BEGINNING and flags & re.MULTILINE
        return [(_Step(frozenset(), 0, 0, ops.AT_BEGINNING_LINE if by_line else argument),)]
    if op is ops.BRANCH:
        return [path for branch in argument[1] for path in _paths(branch, flags)]
    if op is ops.SUBPATTERN:
        _, added, removed, tree = argument
        if added & re.ASCII:
            raise _RefusedError(_ASCII)
        return _paths(tree, (flags | added) & ~removed)
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        low, high, tree = argument
        return _repeated(low, high, tree, flags)
    return [(_Step(_characters(op, argument, flags), 1, 1),)]


def _repeated(low: int, high: int, tree: Any, flags: int) -> list[_Path]:
    paths = _paths(tree, flags)
    if len(paths) == 1 and all(step.low == step.high and step.assertion is None for step in paths[0]):
        width = sum(step.low for step in paths[0])
        characters = frozenset[int]().union(*(step.characters for step in paths[0]))
        return [(_Step(characters, low * width, min(high * width, int(ops.MAXREPEAT))),)]
    if high > _MOST_UNROLLED or (low != high and high > 1):
        raise _RefusedError(
            "repeats a group that itself repeats or chooses, which can take too long; write the repeat inside as a set"
            f" of characters, or repeat the group a fixed number of times up to {_MOST_UNROLLED}"
        )
    return [step for count in range(low, high + 1) for step in _times(paths, count)]


def _times(paths: list[_Path], count: int) -> list[_Path]:
    if len(paths) ** count > _MOST_PATHS:
        raise _RefusedError(f"has more than {_MOST_PATHS} combinations of alternatives; split it into several")
    return [tuple(itertools.chain(*chosen)) for chosen in itertools.product(paths, repeat=count)]


# --- sets of characters ---


def _characters(op: Any, argument: Any, flags: int) -> frozenset[int]:
    """What one item may read; rather too much than too little."""
    if op is ops.ANY:
        return _ALL if flags & re.DOTALL else _ALL - {ord("\n")}
    items = argument if op is ops.IN else [(op, argument)]
    if op is ops.NOT_LITERAL:
        items = [(ops.NEGATE, None), (ops.LITERAL, argument)]
    members = frozenset[int]().union(*(_member(*item, sure=items[0][0] is ops.NEGATE) for item in items))
    if items[0][0] is ops.NEGATE:
        return _ALL - (members | _swapped(members) if flags & re.IGNORECASE else members)
    if flags & re.IGNORECASE and members & (_OTHERS | _CASES_OF_OTHERS):
        members |= _OTHERS | _CASES_OF_OTHERS
    return members | _swapped(members) if flags & re.IGNORECASE else members


def _member(op: Any, argument: Any, *, sure: bool) -> frozenset[int]:
    """What an item of a set stands for. `sure`: only what it surely does, for what is then excluded."""
    if op is ops.NEGATE:
        return frozenset()
    if op is ops.CATEGORY:
        return _CATEGORIES[argument]
    first, last = argument if op is ops.RANGE else (argument, argument)
    return frozenset(range(first, min(last + 1, _LATIN))) | (_OTHERS if last >= _LATIN and not sure else frozenset())


def _swapped(codes: frozenset[int]) -> frozenset[int]:
    """The other cases of letters of Latin-1, as far as they are in it."""
    swapped = {chr(code).swapcase() for code in codes if code < _LATIN}
    return frozenset(ord(letter) for letter in swapped if len(letter) == 1 and ord(letter) < _LATIN)


# --- what a path costs ---


def _check_path(path: _Path) -> None:
    long = [index for index, step in enumerate(path) if step.long]
    for index in long:
        if index == len(path) - 1:
            continue
        if not _is_anchored(path, index):
            raise _RefusedError(
                "has a long repeat that can begin at any place of a long text; put something before it that it cannot"
                f" match itself, or `\\b` before a repeat of `\\w`, or bound it, as in `{{1,{_SHORT_RANGE}}}`"
            )
        if len(long) > 1 and not _is_told_apart(path, index):
            raise _RefusedError(
                "has several long repeats that can match the same text; put something between them that the first"
                f" cannot match, or bound them, as in `{{1,{_SHORT_RANGE}}}`"
            )


def _is_anchored(path: _Path, index: int) -> bool:
    """Whether a few starts at most can read any one character in this repeat."""
    repeated = path[index].characters
    for step in reversed(path[:index]):
        if step.long:
            return False
        if step.assertion is None and step.low > 0 and not step.characters & repeated:
            return True
    return _begins_few_times(path, index, repeated)


def _begins_few_times(path: _Path, index: int, repeated: frozenset[int]) -> bool:
    before = path[index - 1].assertion if index else None
    if before is ops.AT_BOUNDARY:
        return repeated <= _WORD
    if path[0].assertion is ops.AT_BEGINNING_LINE:
        return ord("\n") not in repeated
    return path[0].assertion in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING)


def _is_told_apart(path: _Path, index: int) -> bool:
    """Whether what follows a repeat begins with something that the repeat cannot read."""
    for step in path[index + 1 :]:
        if step.assertion is None and step.characters & path[index].characters:
            return False
        if not step.optional and step.assertion is None:
            return True
    return False


def _steps(path: _Path) -> int:
    """How many steps are taken from one start at most, long repeats aside."""
    ways, length = 1, 0
    for index, step in enumerate(path):
        if step.long:
            length += step.low
            continue
        length += step.high
        if step.low != step.high and index < len(path) - 1 and not _is_told_apart(path, index):
            ways *= step.high - step.low + 1
    return ways * length


def pattern_matches(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the pattern matches between start and end."""
    return (found.span() for found in pattern.finditer(text, start, end) if found.end() > found.start())
