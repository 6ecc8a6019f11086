"""Blocks between BEGIN and END: private keys, which are secrets, and certificates and public keys, which are not."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(r"-- ?BEGIN (?P<label>[A-Za-z0-9 ]{0,60}?) ?-{2,5}")
# Up to the next two dashes; those of one block never reach into the next, so that time stays linear.
_BODY = re.compile(r"(?:[^-]|-(?!-))*+")
_END = re.compile(r"-{2,5} ?END [A-Za-z0-9 ]{0,60}-{2,5}")
# What goes on from the head of a block that was cut off: lines of base64, however they are broken and quoted, and
# what is left of the last one.
_BREAK = r"(?:\s|\\[nr]|[>|#*\"',+]){0,20}"
_REST = re.compile(
    rf"(?:{_BREAK}(?:(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\]{{0,100}}|[A-Za-z0-9+/=]{{20,}}+))*+"
    r"(?:(?:\s|\\[nr]){1,4}[A-Za-z0-9+/=]{1,19}(?=\s*\Z|\.\.\.|…|[\"']))?"
)
_SECRET_LABELS = ("private key", "static key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block with its dashes; `secret` if it is a private key."""

    start: int
    end: int
    secret: bool


def block_at(text: str, dashes: int) -> Block | None:
    """The block whose BEGIN follows the two dashes there; None if there is none.

    A block without its END reaches as far as its lines of base64.
    """
    head = _HEAD.match(text, dashes)
    if head is None:
        return None
    end = _END.match(text, _end_of(_BODY, text, head.end()))
    stop = end.end() if end else _end_of(_REST, text, head.end())
    if stop == head.end():
        return None
    secret = any(label in head["label"].lower() for label in _SECRET_LABELS)
    return Block(start=_first_dash(text, dashes), end=stop, secret=secret)


def _first_dash(text: str, dashes: int) -> int:
    lead = text[max(0, dashes - 3) : dashes]
    return dashes - (len(lead) - len(lead.rstrip("-")))


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    assert found is not None, "matches the empty string"
    return found.end()
