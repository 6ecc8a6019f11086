"""Tells what was drawn at random from what people write: names, words, paths, numbers, digests.

A run of characters is read pair by pair. Each pair is likelier in one of two sources: letters and digits drawn at
random from the kinds that the run has (small letters, capitals, digits), or writing, where kinds rarely change and few
pairs of letters are common. The sum of the logarithms says how many bits the run is likelier to be random. It sees what
counting characters cannot: `ossl_check_SRTP_PROTECTION` has as many different ones as a key of its length.

Left alone are digests and commits, UUIDs, names of files, media in `data:` addresses, pictures in base64 that begin as
such, and public keys. In a path or an address each part is judged by itself, so that an unguessable part goes and the
rest stays. Other base64 goes: what it holds is not known.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST_RUN = 32
_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{SHORTEST_RUN},}}={{0,2}}")
# A run that is a hundred times likelier random than written is taken for a secret, if its characters also vary.
_BITS = 7.0
_BITS_PER_CHARACTER = 3.3
# What a longer run is, its beginning tells.
_JUDGED = 256

# The 250 commonest pairs of letters in English technical prose make up 94 % of it, and 37 % of all pairs.
_FOLLOWERS = {
    "a": "bcdgiklmnprstuvy", "b": "aeilorsu", "c": "acehiklortu", "d": "adeiorsu", "e": "abcdefgijlmnpqrstvwxy",
    "f": "aefiortu", "g": "ehinorsu", "h": "aeiortu", "i": "abcdefgklmnoprstvxz", "j": "as", "k": "aeios",
    "l": "adeilostuy", "m": "abeilmopsu", "n": "acdefgilnostuy", "o": "bcdfgilmnoprstuvw", "p": "adeilnoprstuy",
    "q": "u", "r": "acdegiklmnorstuy", "s": "acehilmoprstuy", "t": "acehilmoprstuy", "u": "bcdegilmnprst", "v": "aei",
    "w": "aehio", "x": "ept", "y": "pst", "z": "e",
}  # fmt: skip
_COMMON_WRITTEN, _COMMON_RANDOM = 0.93, 0.37
# How kinds follow each other in identifiers and paths: small letter, capital, digit, anything else.
_WRITTEN = {
    "aa": 0.92, "aA": 0.04, "a0": 0.04, "AA": 0.60, "Aa": 0.34, "A0": 0.06, "00": 0.65, "0a": 0.25, "0A": 0.10,
}  # fmt: skip
_DIGIT = re.compile(r"[0-9]")
_SIZES = {"a": 26, "A": 26, "0": 10}
# Separators are four times rarer in random text; neighbours such as `aa` and `ab` tell little, many of them a sequence.
_SEPARATOR = -2.0
_SEQUENCE = -1.0

# Numbers that stand for something known: UUIDs, digests and commits in hexadecimal, dates, counters.
_NUMBERS = re.compile(
    r"(?<![A-Za-z0-9])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?:0x|g)?(?:[0-9a-f]{7,}|[0-9A-F]{7,})|[0-9]+)(?![A-Za-z0-9])"
)
_DIGEST = re.compile(
    r"(?:sha-?\d{1,3}|md5|blake2[bs]?|blake3|\bh1|digest|integrity|checksum|etag|fingerprint|hash)[\"']?\s?[-:=_]\s?[\"']?\Z",
    re.IGNORECASE,
)
# Names of constants are in capitals, with more separators than any key has.
_CONSTANT = re.compile(r"_*[A-Z0-9]+(?:_+[A-Z0-9]+){2,}_*\Z")
_JOINTS = (":", "=", "-", " ", '"', "'")
_DIGEST_PREFIX = re.compile(r"(?:sha\d{1,3}|md5)-", re.IGNORECASE)
# How pictures and public keys for SSH begin in base64, paths by digest, and names that a compiler mangled.
_PUBLIC_PREFIXES = (
    "iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "AAAAB3NzaC1", "AAAAC3NzaC1", "AAAAE2VjZHNhL", "AAAAGnNrL", "AAAAInNrL",
    "/nix/store/", "_ZN", "_ZS", "_ZT", "_ZK",
)  # fmt: skip
_MEDIA = re.compile(r"data:(?:image|audio|video|font)/[\w.+-]{1,40}(?:;[\w=-]{1,40})?;base64,\Z")
# What an encoding or a terminal's colour left at the beginning of a run: it is no part of it.
_ESCAPED = re.compile(r"(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=\[)[0-9]{1,2}m")
_FILE_ENDING = re.compile(r"\.(?:[a-z]{2,5}|mp[34]|7z|bz2|woff2)\b(?![./_-])")
_SMALL_PATH = re.compile(r"(?:[a-z0-9_-]+/)+[a-z0-9_-]*(?![A-Za-z0-9+/_-])")
_ROOT = re.compile(r"/[A-Za-z][a-z]+[a-z0-9_-]*/")


def random_runs(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where runs of 32 or more characters between start and end look drawn at random."""
    for run in _RUN.finditer(text, start, end):
        if _is_public(text, run.start(), run.end()):
            continue
        if _is_path(text, start, run.start()):
            yield from _random_parts(text, run.start(), run.end())
        elif is_random(run.group()):
            escaped = _ESCAPED.match(text, run.start())
            yield escaped.end() if escaped else run.start(), run.end()


def is_random(run: str) -> bool:
    """Whether a run of letters, digits and separators is far likelier drawn at random than written."""
    rest = _NUMBERS.sub("", run[:_JUDGED])
    return _CONSTANT.match(run) is None and bits(rest) > _BITS and _characters_vary(rest)


def bits(run: str) -> float:
    """How much likelier the run is random than written, as a logarithm to base 2; negative when written is likelier."""
    if not run.isascii():
        return 0.0
    weights = _weights(small=run.upper() != run, capital=run.lower() != run, digit=_DIGIT.search(run) is not None)
    return sum(map(weights.__getitem__, itertools.pairwise(run)))


def _random_parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a path that look random, each long enough by itself; names of files are left."""
    at = start
    for part in text[start:end].split("/"):
        span = at, at + len(part)
        at = span[1] + 1
        if len(part) >= SHORTEST_RUN and not _is_file_name(text, span[1], end) and is_random(part):
            yield span


def _is_file_name(text: str, part_end: int, run_end: int) -> bool:
    return part_end == run_end and _FILE_ENDING.match(text, run_end) is not None


def _is_path(text: str, word_start: int, run_start: int) -> bool:
    """Whether a run goes on from a host, a directory or a root, or is one part of an address."""
    return (
        _ROOT.match(text, run_start) is not None
        or _SMALL_PATH.match(text, run_start) is not None
        or text.endswith((".", "~"), 0, run_start)
        or text.find("://", word_start, run_start) >= 0
    )


def _is_public(text: str, start: int, end: int) -> bool:
    """Whether a run is what others may see: a digest in a lock file, a picture, a public key."""
    return (
        text.startswith(_PUBLIC_PREFIXES, start)
        or _DIGEST_PREFIX.match(text, start, end) is not None
        or (text.endswith(_JOINTS, 0, start) and _DIGEST.search(text[max(0, start - 16) : start]) is not None)
        or (text.endswith(",", 0, start) and _MEDIA.search(text[max(0, start - 120) : start]) is not None)
    )


def _characters_vary(run: str) -> bool:
    length = len(run)
    return -sum(n / length * math.log2(n / length) for n in Counter(run).values()) >= _BITS_PER_CHARACTER


def _kind(character: str) -> str:
    if character.isdigit():
        return "0"
    return ("A" if character.isupper() else "a") if character.isalpha() else "-"


@cache
def _weights(*, small: bool, capital: bool, digit: bool) -> dict[tuple[str, str], float]:
    """For each pair of ASCII characters the bits that it adds, where random text is drawn from these kinds."""
    size = small * _SIZES["a"] + capital * _SIZES["A"] + digit * _SIZES["0"]
    characters = [chr(code) for code in range(128)]
    return {(a, b): _weight(a, b, size) for a in characters for b in characters}


def _weight(a: str, b: str, size: int) -> float:
    pair = _kind(a) + _kind(b)
    if "-" in pair:
        return 0.0 if a == "=" or b == "=" else _SEPARATOR / 2
    if ord(b) - ord(a) in (0, 1):
        return _SEQUENCE
    random, written = _SIZES[pair[1]] / size if size else 1.0, _WRITTEN[pair]
    if pair in ("aa", "AA", "Aa"):
        common = b.lower() in _FOLLOWERS[a.lower()]
        random *= _COMMON_RANDOM if common else 1 - _COMMON_RANDOM
        written *= _COMMON_WRITTEN if common else 1 - _COMMON_WRITTEN
    return math.log2(random / written)
