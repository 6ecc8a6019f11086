"""Addresses, telephone numbers and card numbers: replaced only where asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hivemem.redaction._finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL_PART = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}")
_AT_DOMAIN = re.compile(r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}\b")
# Numbers are searched for by their first character, and only then is looked at what stands before it: that is fast.
_NO_PART = r"(?<![\w.+/=)-]"
_END = r"(?![\w-])(?!\.\d)"
# Digits that may be a card's: 13 to 19 of them, in groups or not, and no part of a longer number.
_CARD = re.compile(rf"[2-6](?<![\w.+-].)(?:[ -]?[0-9]){{12,18}}{_END}")
# Numbers with a country's prefix, numbers of North America in their groups, numbers with a leading zero and groups.
_PHONE = re.compile(
    rf"(?:\+{_NO_PART}\+)|0{_NO_PART}0)0)[1-9](?:[ .()/-]{{0,2}}[0-9]){{6,14}}{_END}"
    rf"|(?:1{_NO_PART}1)[ .-]\(?[2-9]|\({_NO_PART}\()[2-9]|[2-9]{_NO_PART}.))"
    rf"[0-9]{{2}}\)?[ .-]?[2-9][0-9]{{2}}[ .-][0-9]{{4}}{_END}"
    rf"|(?:\({_NO_PART}\()0|0{_NO_PART}0))[1-9][0-9]{{1,4}}\)?[ /-][0-9]{{3,4}}(?:[ -]?[0-9]{{2,4}}){{1,3}}{_END}"
)


def emails(text: str) -> Iterator[Finding]:
    """Addresses of e-mail."""
    for found in _AT_DOMAIN.finditer(text):
        # Read backwards from the @, so that no long word is read again and again.
        at = found.start()
        local = _LOCAL_PART.match(text[max(0, at - 64) : at][::-1])
        if local is not None:
            yield Finding(kind="email", start=_local_start(text, at - local.end(), at), end=found.end())


def _local_start(text: str, start: int, at: int) -> int:
    while start < at - 1 and not text[start].isalnum() and text[start] != "_":
        start += 1
    return start


def phones(text: str) -> Iterator[Finding]:
    """Telephone numbers that are written as such: with a prefix, or in groups."""
    return (Finding(kind="phone", start=found.start(), end=found.end()) for found in _PHONE.finditer(text))


def cards(text: str) -> Iterator[Finding]:
    """Numbers of payment cards, by their check digit."""
    for found in _CARD.finditer(text):
        if _check_digit_fits([int(digit) for digit in found.group() if digit.isdigit()]):
            yield Finding(kind="card", start=found.start(), end=found.end())


def _check_digit_fits(digits: list[int]) -> bool:
    """Luhn's rule: every second digit from the right is doubled, and the sum of all digits is a multiple of ten."""
    doubled = [2 * digit - 9 if digit > 4 else 2 * digit for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


FINDERS = {"email": emails, "phone": phones, "card": cards}
