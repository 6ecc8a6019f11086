"""Passwords that stand beside a user's name: in addresses, after `curl -u`, in SQL."""

from __future__ import annotations

import re

from hivemem.redaction._finding import Finding
from hivemem.redaction._values import Name, Sign, Value, is_placeholder, is_token, value_at

_LONGEST = 640
_USER = re.compile(r"[^\s/?#\"'`<>@:\0\\]{0,256}")
_AUTHORITY = re.compile(r"[^\s/?#\"'`<>\0\\]{1,512}")
_UNSPACED = re.compile(r"[^\s\"'`<>\0\\]{1,128}")
_PORT = re.compile(r":\d*(?=[/?#\s\"'`<>]|\Z)")
_HOST = re.compile(r"[\w\[$%{]")
_TEMPLATES = ("$", "{", "<", "%(", "*", "[")
_OPTION = re.compile(r"(?:-u|--user)[ =]{1,4}[\"']?[^\s:\"'\0]{1,128}:(?P<password>[^\s\"'\0]{1,512})")
_TOKEN = Name(word="token", sign=Sign.EQUALS, key=True, capitals=False)


def in_address(text: str, small: str, start: int, word: str) -> Finding | None:
    """The password before the host of an address, or a token that stands there alone; `word` is `://`."""
    start += len(word)
    if text.find("@", start, start + _LONGEST) < 0:
        return None
    user = _USER.match(text, start)
    authority = _AUTHORITY.match(text, start)
    if user is None or authority is None:
        return None
    at = text.rfind("@", start, authority.end())
    colon = user.end() if text.startswith(":", user.end()) else -1
    if colon >= 0 and at < colon:
        at = _late_at(text, colon)
    if at < 0 or _HOST.match(text, at + 1) is None:
        return None
    return _password(text, colon + 1, at) if colon >= 0 else _lone_token(text, start, at)


def _late_at(text: str, colon: int) -> int:
    """The `@` behind a password that holds a `/`; -1 if there is none, or a port follows the colon."""
    unspaced = _UNSPACED.match(text, colon)
    return -1 if unspaced is None or _PORT.match(text, colon) else text.rfind("@", colon, unspaced.end())


def _password(text: str, start: int, end: int) -> Finding | None:
    password = text[start:end]
    if not password or (password.startswith(_TEMPLATES) and is_placeholder(password)):
        return None
    return Finding(kind="url-credentials", start=start, end=end)


def _lone_token(text: str, start: int, end: int) -> Finding | None:
    token = Value(text=text[start:end], start=start, end=end, quoted=True)
    if is_placeholder(token.text) or not is_token(token, _TOKEN, shortest=16):
        return None
    return Finding(kind="url-credentials", start=start, end=end)


def in_option(text: str, small: str, start: int, word: str) -> Finding | None:
    """The password of `curl -u user:password` or `--user user:password`."""
    if word == "-u " and "curl" not in small[max(0, start - 300) : start]:
        return None
    found = _OPTION.match(text, start)
    if found is None or found["password"].isdigit() or is_placeholder(found["password"]):
        return None
    return Finding(kind="password", start=found.start("password"), end=found.end("password"))


def in_sql(text: str, small: str, start: int, word: str) -> Finding | None:
    """The password of `IDENTIFIED BY '…'`."""
    value = value_at(text, start + len(word) + 1)
    if value is None or not value.quoted or is_placeholder(value.text):
        return None
    return Finding(kind="password", start=value.start, end=value.end)
