"""Secrets behind a name: `password=…`, `"apiKey": "…"`, `--token …`, `<secret>…</secret>`, "the password is …"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hivemem.redaction._finding import Finding
from hivemem.redaction._values import Name, Sign, Value, is_password, is_placeholder, is_token, value_at

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = r"p(?:ass(?:wor[dt]|wd|phrase|code)?|wd?)|s(?:ecret|ignature|ig(?==))|token|key|auth(?:orization)?|credentials?"

# What may stand between a name and its value.
_SUFFIX = (
    r"(?:[_-]?(?:hash|value|plain|text|prod|production|dev|development|staging|test|live|new|old|current|confirm"
    r"|confirmation|admin|root|user|base64|b64|primary|secondary|data|base)){0,2}[_-]?[0-9]{0,2}"
)
_CLOSE = r"(?P<close>(?:\\{0,4}[\"'`]|&quot;|%22)?(?:\[\w*\])?[\])]?)"
_TYPE = r"(?:typing\.)?(?:str|string|bytes|any|text|secretstr|(?:optional|final|annotated)\[[^\]\n]{0,40}\])"
_JOIN = re.compile(
    rf"""{_SUFFIX}{_CLOSE}(?:
      # name: X_PASSWORD, value: …
      (?P<value>[ \t]{{0,8}},?\s{{0,40}}\\{{0,4}}["']?value\\{{0,4}}["']?[ \t]{{0,8}}[:=][ \t]{{0,8}})
    | (?P<typed>(?:[ \t]{{0,4}}:[ \t]{{0,4}}|[ \t]){_TYPE}(?:[ ]\|[ ]\w{{1,20}})?[ \t]{{0,4}}=[ \t]{{0,4}})
    | [ \t]{{0,8}}(?P<equals>:=|===?|=>|=|%3d)[ \t]{{0,8}}
    | (?:[ \t](?:for|of|on|to)(?:[ \t][\w.@'-]{{1,40}}){{1,4}}?|[ \t]\([^()\n]{{1,40}}\))?
      (?:[ \t]{{0,8}}(?P<colon>:(?![:/])|%3a)[ \t]{{0,8}}|[ \t]{{1,4}}(?P<is>is|was|to)(?:[ \t]now)?:?[ \t]{{1,4}})
    | (?P<gap>,?[ \t]{{1,4}}|>)
    )""",
    re.VERBOSE,
)

_PASSWORDS = frozenset(("pass", "password", "passwort", "passwd", "passphrase", "passcode", "pwd", "pw"))
_WHOLE_WORDS = frozenset(("pass", "auth", "pwd", "pw", "signature", "sig"))


def _joined_to(words: str, joints: Iterable[str]) -> tuple[str, ...]:
    return tuple(word + joint for word in words.split() for joint in joints)


_JOINTS = ("_", "-", ".", '"', "'")
# A key is secret if one of these stands before it; a token is unless one of those does.
_SECRET_KEYS = _joined_to(
    "api apikey secret access private auth encryption signing master account service subscription client consumer app "
    "application shared storage admin deploy webhook hmac license session functions integration ingest",
    ("", "_", "-", " ", "."),
)
_OPEN_TOKENS = _joined_to(
    "page next continuation stop pad eos bos cursor sync special cancellation", ("", "_", "-", " ")
)
_KEY_POSITION = re.compile(r"(?:\A|[\n{,(\[]|\\n)[ \t]*(?:-[ \t]+|export[ \t]+|set[ \t]+|env[ \t]+)?[\"']?[\w.-]*\Z")
_OPTION = re.compile(r"(?:\A|[\s\"'`,\[])--?[\w-]*\Z")
_LOGIN = re.compile(r"\b(?:login|user|machine)\s+\S{1,40}\s+\Z")
_TAG = re.compile(r"<[\w:.-]*\Z")


# Words that mostly stand before something else have longer values where they stand before a secret.
_SHORTEST_TOKENS = {"auth": 12, "?key": 20, "signature": 20, "sig": 20}
_SHORTEST_TOKEN = 6
_SHORTEST_SAID = 16


def after_name(text: str, small: str, start: int, word: str) -> Finding | None:
    """The secret behind the word that stands at start, if the word is a name and a sign joins the two.

    `small` is the text in small letters; `word` is one of NAMES.
    """
    join = _JOIN.match(small, start + len(word))
    if join is None or not _is_secret_name(text, small, start, word):
        return None
    sign = _sign(join)
    before = text[max(0, start - 64) : start]
    if not _may_follow(text, before, sign, word, join):
        return None
    value = value_at(text, join.end())
    if value is None or (is_placeholder(value.text) and not value.long):
        return None
    kind = _kind(small, start, word)
    if word == "key" and before.endswith(("?", "&")):
        word = "?key"
    name = Name(word=word, sign=sign, key=_is_key(before, join), capitals=text[start : start + len(word)].isupper())
    return Finding(kind=kind, start=value.start, end=value.end) if _is_secret(kind, value, name) else None


def _sign(join: re.Match[str]) -> Sign:
    if join["gap"]:
        return Sign.GAP
    if join["is"]:
        return Sign.IS
    return Sign.COLON if join["colon"] else Sign.EQUALS


def _is_key(before: str, join: re.Match[str]) -> bool:
    """Whether the name is written as the key of a mapping: quoted, or first in its line."""
    return bool(join["close"]) or join["value"] is not None or _KEY_POSITION.search(before) is not None


def _is_secret_name(text: str, small: str, start: int, word: str) -> bool:
    """Whether the word names a secret: a `private_key` but no `primary_key`, a `dbPass` but no `compass`."""
    if word == "key":
        return small.endswith(_SECRET_KEYS, max(0, start - 16), start) or text[start - 1 : start] in ("?", "&")
    if word == "token":
        return not small.endswith(_OPEN_TOKENS, max(0, start - 16), start)
    return word not in _WHOLE_WORDS or _begins_word(text, start)


def _begins_word(text: str, start: int) -> bool:
    before = text[start - 1 : start] if start else ""
    return not before.isalpha() or (text[start].isupper() and before.islower())


def _may_follow(text: str, before: str, sign: Sign, word: str, join: re.Match[str]) -> bool:
    """Whether this sign makes what follows a value of this word."""
    if sign is Sign.GAP:
        return _may_follow_gap(text, before, word, join)
    if word in ("signature", "sig"):
        return sign is Sign.EQUALS
    if word == "pass" and sign is Sign.COLON:
        # Reports of tests say `PASS: name`.
        return before.endswith(_JOINTS) or before[-1:].isalnum() or text[join.start() - len(word)].islower()
    return True


def _may_follow_gap(text: str, before: str, word: str, join: re.Match[str]) -> bool:
    """Whether a value may follow without a sign: after an option, in a tag, in SQL, in a file of logins."""
    if join["gap"] == ">":
        return _TAG.search(before) is not None
    if _OPTION.search(before):
        return not text.startswith("-", join.end())
    if word in _PASSWORDS and word != "pass" and not join["gap"].startswith(","):
        return text.startswith(("'", '"', "`"), join.end()) or _LOGIN.search(before) is not None
    return False


def _kind(small: str, start: int, word: str) -> str:
    if word in _PASSWORDS:
        return "password"
    if word == "key":
        return "private-key" if small.endswith(("private", "private_", "private-"), 0, start) else "api-key"
    if word == "secret":
        return "secret"
    return "signature" if word.startswith("sig") else "token"


def _is_secret(kind: str, value: Value, name: Name) -> bool:
    if kind in ("password", "secret"):
        return is_password(value, name)
    said = name.sign is Sign.IS and kind == "token" and not value.quoted
    return is_token(value, name, shortest=_SHORTEST_SAID if said else _SHORTEST_TOKENS.get(name.word, _SHORTEST_TOKEN))
