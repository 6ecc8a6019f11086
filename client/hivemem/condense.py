"""Condenses text by quoting it: the sentences that carry most, those that decide, those that leave something open.

Every sentence that comes out stands in the text, word for word. Gone are the line breaks inside it, and marks that are
not words: emphasis, list bullets, the addresses of links. Headings, tables and code are left out. The same text gives
the same answer.
"""

from __future__ import annotations

import heapq
import math
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEFAULT_SENTENCES = 3
# The first sentence of a text tends to say what it is about.
_LEAD_BONUS = 1.3
# What a sentence adds is set against its length, but not in full: short ones say little. Beyond so many stems it is.
_LENGTH_EXPONENT = 0.7
_LONG_SENTENCE = 25
# Names of constants are rare words that say little.
_SHOUTED = 0.25
_SHOUTED_WORTH = 0.3
# What has fewer words, or fewer letters among its characters, is no sentence.
_FEWEST_WORDS = 3
_FEWEST_LETTERS = 0.6
# A line shorter than this was not wrapped: what follows in a new line is something new.
_SHORTEST_WRAPPED_LINE = 45


def summarise(text: str, *, sentences: int | None = None, most_bytes: int | None = None) -> str:
    """The sentences that carry most of the text, in its order, separated by spaces.

    There are at most `sentences` of them, and they take at most `most_bytes` of UTF-8; three if neither is given. Text
    without sentences (code, a table) gives its first words. Only blank text gives an empty answer.
    """
    if sentences is None and most_bytes is None:
        sentences = _DEFAULT_SENTENCES
    found = split(text)
    room = _size(text) if most_bytes is None else most_bytes
    chosen = _cover(found, most=len(found) if sentences is None else sentences, room=room)
    if chosen:
        return " ".join(found[index] for index in sorted(chosen))
    return cut(found[0] if found else " ".join(text.split()), room)


def split(text: str) -> list[str]:
    """The sentences of Markdown or plain text, in order, each once."""
    sentences = (sentence for block in _blocks(text) if block.prose for sentence in _sentences(block.text))
    return _unique(sentence for sentence in sentences if _is_sentence(sentence))


def decisions(text: str) -> list[str]:
    """The sentences that state a decision, a rule or a choice, in order."""
    return [sentence for sentence in split(text) if _DECIDES.search(sentence) and not sentence.endswith("?")]


def open_questions(text: str) -> list[str]:
    """What the text leaves open, in order: marks such as TODO, boxes not ticked, things not done yet, questions."""
    return _unique(sentence for block in _blocks(text) for sentence in _left_open(block))


def headings(text: str) -> list[str]:
    """The headings of Markdown, in order, each once."""
    return _unique(block.text for block in _blocks(text) if block.heading)


def key_terms(texts: Iterable[str], *, most: int = 10) -> list[str]:
    """The words that most of the texts turn on, best first, each in the spelling it mostly has."""
    spelt: dict[str, Counter[str]] = {}
    spread: Counter[str] = Counter()
    for text in texts:
        words = [word for word in _words_inside(text) if _is_telling(word)]
        for word in words:
            spelt.setdefault(_stem(word), Counter())[word] += 1
        spread.update({_stem(word) for word in words})
    weights = {key: spread[key] * math.log1p(forms.total()) for key, forms in spelt.items()}
    best = sorted(weights, key=lambda key: (-weights[key], key))
    return [max(spelt[key], key=lambda word: (spelt[key][word], word)) for key in best[:most]]


def stems(text: str) -> list[str]:
    """The stems of the words that mean something, in order, with repetitions."""
    return [_stem(word) for word in _WORD.findall(text) if word.lower() not in _STOP_WORDS]


def cut(text: str, most_bytes: int) -> str:
    """The beginning of a text within so many bytes of UTF-8; `…` stands for what is gone, after a whole word."""
    if _size(text) <= most_bytes:
        return text
    kept = text.encode(errors="replace")[: max(most_bytes - _size("…"), 0)].decode(errors="ignore")
    whole = kept.rpartition(" ")[0].rstrip() or kept
    return f"{whole}…" if whole else ""


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


# ---- choosing ----------------------------------------------------------------------------------------------------


def _cover(sentences: Sequence[str], *, most: int, room: int) -> list[int]:
    """Indexes of sentences that together cover most, chosen greedily by what each adds for its length."""
    contents = [frozenset(stems(sentence)) for sentence in sentences]
    weights = _weights(contents)
    worth = [_worth(sentence, len(content)) for sentence, content in zip(sentences, contents, strict=True)]
    worth[:1] = [one * _LEAD_BONUS for one in worth[:1]]
    covered: set[str] = set()
    chosen: list[int] = []

    def gain(index: int) -> float:
        added = sum(weights[one] for one in sorted(contents[index] - covered))
        return added * worth[index]

    # What a sentence adds only shrinks as others are chosen, so that an old gain is a bound for the new one.
    waiting = [(-gain(index), index) for index in range(len(sentences))]
    heapq.heapify(waiting)
    while waiting and len(chosen) < most:
        _, index = heapq.heappop(waiting)
        needed = _size(sentences[index]) + bool(chosen)
        if needed > room or (now := gain(index)) <= 0:
            continue
        if waiting and (-now, index) > waiting[0]:
            heapq.heappush(waiting, (-now, index))
            continue
        chosen.append(index)
        covered |= contents[index]
        room -= needed
    return chosen


def _worth(sentence: str, stem_count: int) -> float:
    """What the form of a sentence makes of what it covers: neither too long nor a list of names in capitals."""
    length = stem_count + 4
    capitals = sum(character.isupper() for character in sentence) / len(sentence)
    shape = _SHOUTED_WORTH if capitals > _SHOUTED else 1.0
    return shape / (math.pow(length, _LENGTH_EXPONENT) * max(length / _LONG_SENTENCE, 1.0))


def _weights(contents: Sequence[frozenset[str]]) -> dict[str, float]:
    """What each stem is worth: more if several sentences have it, less if nearly all do."""
    spread = Counter(one for content in contents for one in content)
    total = len(contents)
    return {one: math.log2(1 + count) * math.log2(1 + total / count) for one, count in spread.items()}


# ---- telling -----------------------------------------------------------------------------------------------------

_DECIDES = re.compile(
    r"""\b(?: we\s(?:use|keep|take|choose|chose|adopt|prefer|agreed|went\swith|will\s(?:use|keep)|do\snot|don't)
    | (?:is|are|was|were|be|been|has|have)\s(?:decided|agreed|chosen|settled|required|forbidden|refused|rejected)
    | decid(?:ed|es)\b | decision\sis | agreed\s(?:on|to|that) | settled\son | chose\b | opted\sfor
    | must\b | shall\b | never\b | always\b | is\snot\sallowed | may\snot | only\sif | need\snot
    | instead\sof | rather\sthan | in\sfavou?r\sof | defaults?\s(?:to|is) | by\sdefault | by\sdesign )""",
    re.IGNORECASE | re.VERBOSE,
)
_MARKS = re.compile(r"\b(?:TODO|FIXME|TBD|XXX)\b")
_LEAVES_OPEN = re.compile(
    r"""\b(?: not\s(?:yet|decided|clear|known|settled|built|done|tested|measured|implemented|supported)\b | yet\sto\b
    | nobody\sknows | (?:has|have)\snot\sbeen\s(?:tested|measured|tried|run|decided|settled)
    | undecided | unresolved | unimplemented
    | (?:remains?|is|are)\s(?:still\s)?unclear | (?:remains?|still|left)\sopen\b
    | open\s(?:question|issue|point)s? | left\s(?:to\s(?:do|be)|for\slater) | (?:remains?|still|yet)\sto\sbe\s
    | still\s(?:missing|needs?|lacks?) | follow-?ups?\b | (?:will|to)\s(?:come|follow)\s(?:later|next|soon)
    | (?:comes?|coming)\s(?:next|soon) | next\ssteps?\b | for\snow\b ) """,
    re.IGNORECASE | re.VERBOSE,
)


def _left_open(block: _Block) -> Iterator[str]:
    if not block.prose:
        if _MARKS.search(block.text):
            yield block.text
        return
    for number, sentence in enumerate(_sentences(block.text)):
        marked = _MARKS.search(sentence) or (block.unticked and number == 0)
        asks = sentence.endswith("?") or _LEAVES_OPEN.search(sentence)
        if marked or (asks and _is_sentence(sentence)):
            yield sentence


def _is_sentence(text: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in text)
    unspaced = any("\u3040" <= character <= "\u9fff" for character in text)  # Chinese and Japanese
    enough = unspaced or len(_WORD.findall(text)) >= _FEWEST_WORDS
    return enough and letters >= _FEWEST_LETTERS * len(text) and not _CODE.match(text) and text[-1] not in "{};,:"


# ---- reading -----------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"\s*(```+|~~~+)")
_HEADING = re.compile(r"\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_RULE = re.compile(r"\s*(?:=[=\s]*|-[-\s]*|\*[*\s]*|_[_\s]*|\+[-=+]+)$")
_TABLE_ROW = re.compile(r"\s*\||.*\s\|\s.*\|")
_BULLET = re.compile(r"\s*(?:[-*+•·]|\(?\d{1,3}[.)])\s+(?:\[([ xX])\]\s+)?(?=\S)")
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_COMMENT = re.compile(r"\s*(?://+|--)\s+")
_CODE = re.compile(
    r"""\s*(?: (?:import|from|def|class|return|const|let|var|function|struct|enum|message|package|syntax|option|export
        |async|await|elif|raise|SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|GRANT)\s[^.!?]*[=({;:*]
    | https?://\S+\s
    | [$#>]\s | >>>\s | \w+\s*[=:]=?\s*["'\[{(\d] | [\w.]+\([^)]*\)\s*[;:{]?$ | [@<{}\[] | \#include )""",
    re.VERBOSE,
)
_CODE_LINE = re.compile(r".*[=({\])].*[;{}]\s*$|\s*[})\];]+\s*$")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^()\s]*(?:\s\"[^\"]*\")?\)")
_LINK = re.compile(r"\[([^\[\]]+)\](?:\([^()\s]*(?:\s\"[^\"]*\")?\)|\[[^\[\]]*\])")
_TAG = re.compile(
    r"</?(?:a|b|i|p|br|hr|em|img|sub|sup|kbd|div|span|code|pre|center|strong|picture|source"
    r"|table|thead|tbody|tr|td|th|ul|ol|li|h[1-6])\b[^<>]*>",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`]*`")
_STRONG = re.compile(r"(?<![\w*_])(\*{1,3}|_{2,3})(?=\S)(.+?)(?<=\S)\1(?![\w*_])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A paragraph, a list item, a heading or a line of code, in one line. `prose` may consist of sentences."""

    text: str
    prose: bool = True
    heading: bool = False
    unticked: bool = False


class _Reader:
    """Gathers lines into blocks."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self._lines: list[str] = []
        self._unticked = False
        self._in_list = False

    def take(self, line: str) -> None:
        """Takes the next line that is outside of fences."""
        line = _QUOTE.sub("", line, count=1) if line.lstrip().startswith(">") else line
        if heading := _HEADING.match(line):
            self._add(heading[2], heading=True)
        elif not line.strip():
            self.close()
        elif _RULE.match(line):
            self._underline(line)
        elif bullet := _BULLET.match(line):
            self.close()
            self._in_list, self._unticked = True, bullet[1] == " "
            self._lines = [line[bullet.end() :]]
        elif self._is_apart(line):
            self._add(line)
        else:
            self._continue(line)

    def close(self, *, heading: bool = False) -> None:
        """Ends the block under way."""
        if text := _inline(" ".join(self._lines)):
            self.blocks.append(_Block(text=text, prose=not heading, heading=heading, unticked=self._unticked))
        self._lines, self._unticked = [], False

    def _add(self, line: str, *, heading: bool = False) -> None:
        self.close()
        if text := _inline(line):
            self.blocks.append(_Block(text=text, prose=False, heading=heading))

    def _is_apart(self, line: str) -> bool:
        """Whether a line is code or part of a table."""
        indented = line.startswith(("    ", "\t")) and not self._lines and not self._in_list
        return indented or bool(_TABLE_ROW.match(line) or _CODE_LINE.match(line))

    def _underline(self, line: str) -> None:
        """Takes a line of strokes: it makes a heading of a line above it."""
        self.close(heading=len(self._lines) == 1 and line.strip()[0] in "=-")

    def _continue(self, line: str) -> None:
        if not line.startswith((" ", "\t")) and not self._lines:
            self._in_list = False
        line = _COMMENT.sub("", line, count=1)
        starts_anew = bool(self._lines) and len(self._lines[-1]) < _SHORTEST_WRAPPED_LINE and line.lstrip()[0].isupper()
        if starts_anew:
            self.close()
        self._lines.append(line)


def _blocks(text: str) -> list[_Block]:
    reader = _Reader()
    fence = ""
    for line in textwrap.dedent(_HIDDEN.sub(" ", text)).splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            reader.close()
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            reader.take(line)
    reader.close()
    return reader.blocks


def _inline(text: str) -> str:
    """Text in one line, without the marks that Markdown puts around words; between backticks nothing changes."""
    spans = _CODE_SPAN.findall(text)
    bare = _CODE_SPAN.sub("\0", text.replace("\0", "�"))
    bare = _STRONG.sub(r"\2", _TAG.sub(" ", _LINK.sub(r"\1", _IMAGE.sub("", bare))))
    pieces = bare.split("\0")
    whole = "".join(part for pair in zip(pieces, [*spans, ""], strict=False) for part in pair)
    return " ".join(whole.split())


# ---- sentences and words -----------------------------------------------------------------------------------------

_END = re.compile(r"(?<=[.!?…])[\"'”’)\]»*_]*\s+(?=\S)|(?<=[。！？])(?=\S)")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:[A-Za-z]|e\.g|i\.e|cf|vs|etc|approx|resp|incl|al|dr|mr|mrs|ms|prof|st|jr|sr|inc|ltd|corp"
    r"|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|u\.s|a\.m|p\.m)\.$",
    re.IGNORECASE,
)
_BEFORE_A_NUMBER = re.compile(r"(?:^|[\s(\[])(?:no|nr|figs?|eq|sec|ch|vol|pp?)\.$", re.IGNORECASE)
_ITEM_NUMBER = re.compile(r"\d{1,3}\.$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SUFFIX = re.compile(r"(?:ations?|ings?|edly|ed|ies|es|s|ly|ments?|ness|e|y)$")
_SHORTEST_STEM = 3
_STOP_WORDS = frozenset(
    """
    a about above after again against all also always am an and another any are as at be because been before being
    below between both but by can cannot could did do does doing down during each either else every everything few
    first for from further given gives goes had has have having he her here hers him his how i if in into is it it's
    its itself just last least less let like made make makes many may me might more most much must my neither never
    next no nor not nothing now of off on once one only onto or other others our out over own per rather return
    returned returns same says shall she should since so some something such take takes than that the their them
    themselves then there these they thing things this those three through to too two under unless until up upon us
    use used uses using very was we well were what whatever when where whether which while who whole whom whose why
    will with within without would yet you your
    """.split()  # noqa: SIM905 (a list of words, one to read)
)


def _sentences(text: str) -> Iterator[str]:
    """The sentences of one block, without the white space around them."""
    start = 0
    for end in _END.finditer(text):
        in_code = text.count("`", start, end.start()) % 2
        if not in_code and not _goes_on(text[start : end.start()], text[end.end()]):
            yield text[start : end.end()].strip()
            start = end.end()
    if rest := text[start:].strip():
        yield rest


def _goes_on(before: str, following: str) -> bool:
    """Whether a full stop ends no sentence."""
    if before.endswith(("…", "...")):
        return following.islower()
    if following.isdigit() and _BEFORE_A_NUMBER.search(before):
        return True
    return bool(_ABBREVIATION.search(before) or _ITEM_NUMBER.match(before))


def _stem(word: str) -> str:
    """What a word has in common with its other forms: its beginning."""
    word = word.lower().removesuffix("'s").removesuffix("’s")
    short = _SUFFIX.sub("", word)
    return short if len(short) >= _SHORTEST_STEM else word


def _words_inside(text: str) -> Iterator[str]:
    """The words of a text that do not begin a sentence: their capitals mean something, and few are verbs."""
    for sentence in split(text):
        yield from _WORD.findall(sentence)[1:]


def _is_telling(word: str) -> bool:
    return len(word) > _SHORTEST_STEM and word.isalpha() and word.lower() not in _STOP_WORDS
