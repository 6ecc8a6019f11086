"""What stands after a name such as `password=`: how far it reaches, and whether it can be a secret at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from hivemem.redaction._entropy import bits

_SHORTEST = 3
# What is longer is taken without being judged, so that nothing long is read twice.
_LONGEST_JUDGED = 512
_LONGEST_QUOTED = 4096

_OPENING = re.compile(r"(?:[|>][-+]?[ \t]*\n[ \t]+)?[rRbBuUfF]{0,2}(?P<quote>\"\"\"|'''|\\{0,4}[\"'`]|&quot;|%22)")
_BLOCK_SCALAR = re.compile(r"[|>][-+]?[ \t]*\r?\n[ \t]+")
# A bare value ends at a blank or quote, before the next parameter, at a shell's `;`, at an escaped line break or quote.
_PLAIN = r"[^\t-\r\x1c-\x20\x85\xa0\"'`<>\0&;,|\\%\u2000-\u200b\u2028\u2029\u3000-\u3011\uff00-\uff20]"
_PIECE = rf"{_PLAIN}{{1,64}}+|[&;,|](?![\w.$-]{{1,40}}[=:]|[;&,|\s\"'`<>\0]|#?\w{{1,8}};|\Z)|\\(?![nrt\"'])|%(?!2[26])"
_BARE = re.compile(rf"(?:{_PIECE})++")
_LINE_END = re.compile(r"[,;.)\]}\"']{0,3}[ \t]*(?:[\r\n#]|\\[nr]|//|\Z)")
_TRAILING = ".,;:?)]}\\"


class Sign(Enum):
    """What joins a name with its value."""

    EQUALS = "="
    COLON = ":"
    IS = "is"
    GAP = " "


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What stands before a value: a word such as `password`, and how it is written."""

    word: str
    sign: Sign
    # As the key of a mapping: quoted, or first in its line.
    key: bool
    # In capitals, as in an environment.
    capitals: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value in its text: from `start` up to but not including `end`, without quotes."""

    text: str
    start: int
    end: int
    quoted: bool
    # The few characters behind it.
    behind: str = ""

    @property
    def last(self) -> bool:
        """Whether it ends its line, or the quotes that it stands in."""
        return self.quoted or _LINE_END.match(self.behind) is not None

    @property
    def long(self) -> bool:
        """Whether it goes on for longer than a value is judged."""
        return self.end - self.start > _LONGEST_JUDGED


def value_at(text: str, start: int) -> Value | None:
    """The value that begins there, quoted or bare; None if there is none of three characters."""
    opening = _OPENING.match(text, start)
    if opening is not None and (end := _closing(text, opening)) is not None:
        return _value(text, opening.end(), end, quoted=True)
    if opening is not None:
        start = opening.end()
    elif text.startswith(("|", ">"), start) and (scalar := _BLOCK_SCALAR.match(text, start)):
        start = scalar.end()
    return _bare(text, start)


def _closing(text: str, opening: re.Match[str]) -> int | None:
    """Where the quote closes, on the same line unless it is a triple one."""
    quote, start = opening["quote"], opening.end()
    stop = min(len(text), start + _LONGEST_QUOTED)
    if len(quote) != 3:
        newline = text.find("\n", start, stop)
        stop = newline if newline >= 0 else stop
    at = text.find(quote, start, stop)
    while at > 0 and len(quote) == 1 and _is_escaped(text, start, at):
        at = text.find(quote, at + 1, stop)
    if at < 0:
        return None
    blank = text.find("\0", start, at)
    return blank if blank >= 0 else at


def _is_escaped(text: str, start: int, at: int) -> bool:
    before = text[max(start, at - 16) : at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _bare(text: str, start: int) -> Value | None:
    found = _BARE.match(text, start)
    return _value(text, start, start + len(found.group().rstrip(_TRAILING)), quoted=False) if found else None


def _value(text: str, start: int, end: int, *, quoted: bool) -> Value | None:
    if end - start < _SHORTEST:
        return None
    return Value(text=text[start:end], start=start, end=end, quoted=quoted, behind=text[end : end + 12])


# --- whether it can be a secret ---

_PLACEHOLDER = re.compile(
    r"""(?:
      [*xX•●.…_#?-]+                                            # masks
    | \$?\{.* | .*\}\} | \$\(.* | \$[A-Z_][A-Z0-9_]* | \$[a-z_.>-]+ | %\(\w+\)s | %[sdrvq] | %\w+% | \#\{.*  # templates
    | <.* | \[.* | \(.* | [:@]\w*(?:pass|pwd|secret|token|key)\w* | \?
    | .*(?:\.\.\.|…).*
    | !(?:vault|secret|ref|sub|getatt|env|include)\b.* | enc[\[(].* | arn:.* | vault:.* | op://.*  # kept elsewhere
    | (?:https?|file|postgres(?:ql)?|redis|amqps?|mongodb(?:\+srv)?|mysql|s?ftp|s3|gs)://.*
    | (?:your|my|the|an?|some|our|insert|enter|replace|change|put|add|use|example|sample|dummy|fake|placeholder|new|old)
      (?:[_-][a-z]+)+
    | changeme | replaceme | n/a | tba | tbd | todo
    )\Z""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
# Words that say something about a secret instead of being one.
_TELLING = frozenset(
    """
    none null nil undefined nan true false yes no on off and or not is are was were be been has have had will would can
    must may should if in at of to for from with by as it this that these those the a an your my our their his her its
    required optional missing invalid incorrect wrong expired empty blank unset set default hidden masked redacted
    removed unknown secret password passwd passphrase passcode pass pwd token key auth credential credentials string
    str text int integer number bool boolean byte bytes object any char varchar varbinary array list dict map type
    example sample placeholder dummy changeme here see enter choose select create reset forgot forgotten show hide
    change confirm confirmation minimum maximum length field value values only always never please ok okay self cls
    oauth oauth2 basic bearer digest jwt saml ldap sha1 sha256 sha512 md5 hs256 rs256 es256 base64 utf8 utf-8 ed25519
    bcrypt argon2 x509 http https header headers query body cookie cookies env vault keyring stdin prompt input file
    user username name email flag option argument parameter switch
    """.split()  # noqa: SIM905
)
# A sentence about passwords, not a phrase that is one.
_PROSE = re.compile(
    r"\b(?:is|are|was|be|must|should|may|can|cannot|not|the|your|you|please|field|required|invalid|incorrect|wrong|"
    r"least|characters?|enter|for|with|this|that|does|did|has|have|to)\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)*(?:\(|\[|\{|!\.)"  # calls, subscripts
    r"|(?:[a-z_][A-Za-z_]*(?:\.|->|::))+[A-Za-z_]+[!?]?\Z"  # attributes
    r"|(?:await|new|lambda|function|fn|return)\b|&&|\|\||=>"
)
_REFERENCE = re.compile(
    r"(?:[a-z]+[_.-])*[a-z]*(?:passw(?:or)?d|passphrase|pwd|secret|token|key|creds?|credentials?|auth)s?\Z",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"[A-Za-z_.-]+\Z")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:PASS|SECRET|TOKEN|KEY|PWD|AUTH)[A-Z0-9_]*\Z")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?\Z")
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w.@-]+[/\\])+[\w.@:-]*\Z")
_FILE = re.compile(r"[\w./\\-]+\.(?:pem|key|crt|txt|json|ya?ml|env|py|js|ts|go|md|html?|ini|conf|cfg|toml)\Z")
_SYMBOL = re.compile(r"[0-9!@#$%^&*+=~]")


def is_placeholder(value: str) -> bool:
    """Whether a value stands for one that is not there, or says something about it."""
    value = value[:_LONGEST_JUDGED]
    return value.lower() in _TELLING or _PLACEHOLDER.match(value) is not None


def is_password(value: Value, name: Name) -> bool:
    """Whether it can be a password, behind a name that says so: nearly anything that is no placeholder can."""
    text = value.text
    if value.long:
        return True
    if _PATH.match(text) or _FILE.match(text) or _CONSTANT.match(text):
        return False
    if value.quoted:
        return not (" " in text and _PROSE.search(text)) and (name.sign is not Sign.GAP or _is_mixed(text))
    if _CODE.match(text):
        return False
    if _NUMBER.match(text):
        return len(text) >= 4 and text.isdigit() and (value.last or name.key)
    if _IDENTIFIER.match(text):
        return _is_plain_password(value, name)
    return _is_mixed(text) or name.sign is Sign.EQUALS


def _is_plain_password(value: Value, name: Name) -> bool:
    """Letters alone: a password in an environment or among settings, a variable in code, a word in prose."""
    text = value.text
    settings = name.key and value.last and name.sign is Sign.COLON
    if _REFERENCE.match(text):
        return text.isalpha() and len(text) > 12 and (settings or (name.capitals and text.islower()))
    if name.sign is Sign.GAP:
        return name.word != "secret" and not text.isupper()
    return settings or (name.sign is Sign.EQUALS and name.word != "pass")


def is_token(value: Value, name: Name, *, shortest: int) -> bool:
    """Whether what is no placeholder can be a key or token: long enough, without blanks, no word, name or code."""
    text = value.text
    if value.long:
        return True
    if len(text) < shortest or any(map(str.isspace, text)):
        return False
    if _PATH.match(text) or _FILE.match(text) or (not value.quoted and _CODE.match(text)):
        return False
    if text.isdigit():
        return len(text) >= 10 and (value.quoted or name.sign is Sign.EQUALS)
    return _has_letter_and_digit(text) or (len(text) >= 16 and bits(text) > 0)


def _has_letter_and_digit(text: str) -> bool:
    return any(map(str.isalpha, text)) and any(map(str.isdigit, text))


def _is_mixed(text: str) -> bool:
    """Letters with digits or symbols, as passwords have and words have not."""
    return len(text) >= 4 and any(map(str.isalpha, text)) and _SYMBOL.search(text) is not None
