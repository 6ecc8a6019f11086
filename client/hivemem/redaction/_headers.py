"""Secrets in headers of HTTP: what follows `Authorization:`, `Bearer` and `Cookie:`.

Other headers, such as `X-Api-Key:`, are names like any other.
"""

from __future__ import annotations

import re

from hivemem.redaction._finding import Finding
from hivemem.redaction._names import after_name
from hivemem.redaction._values import Name, Sign, Value, is_placeholder, is_token

_KIND = "authorization-header"
_COLON = re.compile(
    r"(?:\\{0,4}[\"'`]|&quot;|%22)?\]?[ \t]{0,8}(?:[:=]|%3a|,(?=[ \t]{0,8}[\"'`]))[ \t]{0,8}"
    r"(?P<quote>\\{0,4}[\"'`]|&quot;|%22)?"
)
# Schemes that one word follows, and schemes that are followed by several.
_ONE = re.compile(
    r"(?:bearer|basic|token|api-?key|ssws|negotiate|ntlm|dpop|bot|genie-?key|splunk|key|vault)(?:[ \t]+|%20|\+)",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"(?:digest|oauth|hawk|signature|mac|aws4[\w-]*|hmac[\w-]*|goog4[\w-]*|aws|sharedkey(?:lite)?)[ \t]+", re.IGNORECASE
)
_CREDENTIAL = re.compile(r"[^\s\"'`,;<>\\\0&]++")
_LINE = re.compile(r"[^\r\n\0=]{1,256}=[^\r\n\0]*+")
_BEARER = re.compile(r"(?:[ \t]{1,4}|%20|\\u0020)(?P<token>[A-Za-z0-9._~+/%-]{16,}+=*)")
_COOKIE = r"[\w!#$%&*+.^|~-]{1,256}"
_VALUE = r"[^\s;,\"'<>\\\0]*+"
_COOKIES = re.compile(rf"{_COOKIE}={_VALUE}(?:;[ \t]{{0,4}}{_COOKIE}(?:={_VALUE})?)*+")
_HEADER = Name(word="authorization", sign=Sign.COLON, key=True, capitals=False)


def authorization(text: str, small: str, start: int, word: str) -> Finding | None:
    """The credentials of `Authorization: …`; the scheme stays."""
    colon = _COLON.match(small, start + len(word))
    if colon is None:
        return None
    if scheme := _ONE.match(text, colon.end()):
        return _credential(text, scheme.end())
    if scheme := _SEVERAL.match(text, colon.end()):
        return _parameters(text, scheme.end(), colon["quote"] or text[start - 1 : start])
    found = after_name(text, small, start, word)
    return found and Finding(kind=_KIND, start=found.start, end=found.end)


def bearer(text: str, small: str, start: int, word: str) -> Finding | None:
    """A token after `Bearer`, wherever it stands."""
    found = _BEARER.match(text, start + len(word))
    if found is None:
        return None
    token = Value(text=found["token"][:512], start=found.start("token"), end=found.end("token"), quoted=True)
    return Finding(kind=_KIND, start=token.start, end=token.end) if _is_token(token) else None


def _is_token(value: Value) -> bool:
    return not is_placeholder(value.text) and is_token(value, _HEADER, shortest=16)


def cookie(text: str, small: str, start: int, word: str) -> Finding | None:
    """The cookies of `Cookie: …` and `Set-Cookie: …`, all of them."""
    colon = _COLON.match(small, start + len(word))
    cookies = _COOKIES.match(text, colon.end()) if colon else None
    return Finding(kind="cookie", start=cookies.start(), end=cookies.end()) if cookies else None


def _credential(text: str, start: int) -> Finding | None:
    found = _CREDENTIAL.match(text, start)
    credential = found.group().rstrip(".)]}") if found else ""
    if len(credential) < 6 or is_placeholder(credential) or (credential.isalpha() and credential.islower()):
        return None
    return Finding(kind=_KIND, start=start, end=start + len(credential))


def _parameters(text: str, start: int, quote: str) -> Finding | None:
    """All parameters of a header: to the end of the line, or of the quotes that the header stands in."""
    line = _LINE.match(text, start)
    if line is None:
        return None
    closing = text.find(quote, start, line.end()) if quote.endswith(("'", '"', "`", "&quot;", "%22")) else -1
    return Finding(kind=_KIND, start=start, end=closing if closing >= 0 else line.end())
