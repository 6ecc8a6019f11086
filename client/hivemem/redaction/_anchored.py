"""What is secret by what stands before it: names, headers, addresses, the heads of key blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hivemem.redaction._blocks import block_at
from hivemem.redaction._finding import Finding
from hivemem.redaction._headers import authorization, bearer, cookie
from hivemem.redaction._logins import in_address, in_option, in_sql
from hivemem.redaction._names import NAMES, after_name

if TYPE_CHECKING:
    from collections.abc import Callable

_FINDERS: dict[str, Callable[[str, str, int, str], Finding | None]] = {
    "authorization": authorization,
    "bearer": bearer,
    "cookie": cookie,
    "identified by": in_sql,
    "://": in_address,
    "-u ": in_option,
    "--user": in_option,
}
_BLOCK = "begin"
# One expression of literals passes over the text, in small letters; finders look only where it stops. Each reads a
# bounded piece, or what it takes.
_ANCHORS = re.compile(rf"{NAMES}|bearer|cookie|identified by|://|-(?:u |-user|-(?= ?{_BLOCK}))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Secrets by what stands before them, in order and apart; and ranges in which nothing is secret."""

    secrets: list[Finding]
    public: list[tuple[int, int]]


def anchored_secrets(text: str) -> Anchored:
    """The secrets that follow a name, a header, a scheme or the head of a block."""
    small = _small_letters(text)
    result = Anchored(secrets=[], public=[])
    at = 0
    while anchor := _ANCHORS.search(small, at):
        word, start = anchor.group(), anchor.start()
        end = _add_block(result, text, start) if word == "--" else _add_secret(result, text, small, start, word)
        at = max(end, anchor.end())
    return result


def _small_letters(text: str) -> str:
    """The text in small letters, each character in its place."""
    small = text.lower()
    # One letter has a small one of two characters.
    return small if len(small) == len(text) else text.replace("İ", "i").lower()


def _add_secret(result: Anchored, text: str, small: str, start: int, word: str) -> int:
    found = _FINDERS.get(word, after_name)(text, small, start, word)
    if found is None:
        return start
    result.secrets.append(found)
    return found.end


def _add_block(result: Anchored, text: str, start: int) -> int:
    block = block_at(text, start)
    if block is None:
        return start
    if block.secret:
        result.secrets.append(Finding(kind="private-key", start=block.start, end=block.end))
    else:
        result.public.append((block.start, block.end))
    return block.end
