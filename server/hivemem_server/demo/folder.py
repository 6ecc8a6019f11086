"""What the researchers read: the texts of a folder, and of its source files what they say in words."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hivemem import condense

MOST_FILES = 24
_FILE_BYTES = 512 << 10
# A part is what one finding is about. A file has a few of them at most.
_PART_CHARACTERS = 3_500
_MOST_PARTS = 4
_TELLING_CHARACTERS = 80

_PROSE = {".md", ".markdown", ".rst", ".txt", ".adoc"}
_SLASHES = {".proto", ".js", ".ts", ".go", ".rs", ".java", ".kt", ".swift", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs"}
_HASHES = {".sh", ".toml", ".yaml", ".yml", ".rb", ".pl"}
_SKIPPED = re.compile(r"\.|__pycache__$|node_modules$|dist$|build$|target$|venv$|site-packages$")
_GENERATED = re.compile(r"_pb2|\.min\.|-lock\.")
_SLASH_COMMENT = re.compile(r"^[ \t]*//+[!/]?[ \t]?([^\n]*)$|/\*+(.*?)\*+/", re.MULTILINE | re.DOTALL)
_DASH_COMMENT = re.compile(r"^[ \t]*--[ \t]?(.*)$", re.MULTILINE)
_HASH_COMMENT = re.compile(r"^[ \t]*#(?!!)[ \t]?(.*)$", re.MULTILINE)
_TITLE = re.compile(r"^# .*$", re.MULTILINE)
_HEADING = re.compile(r"^(?=#{1,3} )", re.MULTILINE)


class NothingToRead(ValueError):
    """The folder has no text; the message says what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a file, as prose."""

    file: str
    text: str

    @property
    def headings(self) -> list[str]:
        """The headings in it that may name a topic: short ones, and the title of the whole only if it is alone."""
        below = condense.headings(_TITLE.sub("", self.text))
        return [heading for heading in below or condense.headings(self.text) if 3 < len(heading) <= 60]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The files chosen to be read, their paths from the root, and how to name them to people. `left_out` are more."""

    root: Path
    files: Sequence[str]
    description: str
    left_out: int = 0


def choose(folder: Path | None, *, start: Path) -> Reading:
    """The files of a folder; without one those of the project around `start`, or else of the installed package."""
    if folder is not None:
        if not folder.is_dir():
            raise NothingToRead(f"{folder} is not a folder: give one with Markdown, text or source files")
        return _reading(folder, _files(folder), str(folder))
    for root in (start, *start.parents):
        if (root / "protos" / "hivemem").is_dir() and (root / "pyproject.toml").is_file():
            return _reading(root, _project_files(root), f"the documents of this project ({root})")
    root = Path(str(import_module("hivemem").__file__)).parent.parent
    files = [path for name in ("hivemem", "hivemem_server") for path in _files(root / name)]
    return _reading(root, files, "what the installed package says of itself (this is no checkout of the project)")


def parts(root: Path, file: str) -> list[Part]:
    """The parts of a file, the same ones every time."""
    text = _prose(root / file)
    if not condense.split(text):
        return []
    size = max(_PART_CHARACTERS, len(text) // _MOST_PARTS + 1)
    return [Part(file=file, text=piece) for piece in _pieces(text, size) if condense.split(piece)]


def divide(root: Path, files: Sequence[str], readers: int) -> list[list[tuple[str, int]]]:
    """Who reads what, as file and index of the part: about as much for each, and files are not torn if it can be."""
    sizes = {file: [len(part.text) for part in parts(root, file)] for file in files}
    whole = [[(file, index) for index in range(len(sizes[file]))] for file in files]
    portions = whole if len(files) >= readers else [[part] for portion in whole for part in portion]
    shares: list[list[tuple[str, int]]] = [[] for _ in range(readers)]
    loads = [0] * readers
    for portion in sorted(portions, key=lambda portion: -sum(sizes[file][index] for file, index in portion)):
        lightest = loads.index(min(loads))
        shares[lightest] += portion
        loads[lightest] += sum(sizes[file][index] for file, index in portion)
    order = {file: place for place, file in enumerate(files)}
    return [sorted(share, key=lambda part: (order[part[0]], part[1])) for share in shares]


# ---- choosing ----------------------------------------------------------------------------------------------------


def _reading(root: Path, found: list[Path], description: str) -> Reading:
    readable = [path for path in found if condense.split(_prose(path))]
    if not readable:
        raise NothingToRead(f"there is nothing to read in {root}: give a folder with Markdown, text or source files")
    # Documents before sources, then the longest; in the order of their names.
    chosen = sorted(readable, key=lambda path: (path.suffix.lower() not in _PROSE, -path.stat().st_size))[:MOST_FILES]
    files = [path.relative_to(root).as_posix() for path in sorted(chosen)]
    return Reading(root=root, files=files, description=description, left_out=len(readable) - len(files))


def _project_files(root: Path) -> list[Path]:
    beside = [path for path in sorted(root.iterdir()) if path.is_file() and path.suffix.lower() == ".md"]
    return beside + [path for name in ("docs", "deploy") for path in _files(root / name) if path.suffix == ".md"]


def _files(folder: Path) -> list[Path]:
    return [path for path in _walk(folder) if _is_read(path)]


def _walk(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _SKIPPED.match(name))
        yield from (Path(at) / name for name in sorted(names))


def _is_read(path: Path) -> bool:
    known = path.suffix.lower() in _PROSE | _SLASHES | _HASHES | {".py", ".sql"}
    hidden = path.name.startswith(".") or _GENERATED.search(path.name) or not str(path).isprintable()
    return known and not hidden and path.is_file() and path.stat().st_size <= _FILE_BYTES


# ---- reading -----------------------------------------------------------------------------------------------------


def _prose(path: Path) -> str:
    """What a file says in words; nothing if it cannot be read as text."""
    try:
        text = path.read_text(encoding="utf-8").replace("\0", "")
    except (OSError, UnicodeDecodeError):
        return ""
    suffix = path.suffix.lower()
    if suffix == ".py":
        return "\n\n".join(_telling(_docstrings(text)))
    if suffix in _SLASHES:
        return _comments(_SLASH_COMMENT, text)
    if suffix == ".sql":
        return _comments(_DASH_COMMENT, text)
    return _comments(_HASH_COMMENT, text) if suffix in _HASHES else text


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def _comments(pattern: re.Pattern[str], source: str) -> str:
    """The comments of a source; those on lines that follow each other are one paragraph."""
    paragraphs: list[str] = []
    end = -1
    for found in pattern.finditer(source):
        text = next((group for group in found.groups() if group is not None), "").strip(" *\t")
        joined = not source[end : found.start()].strip() and source.count("\n", end, found.start()) == 1 and end >= 0
        if joined:
            paragraphs[-1] += f"\n{text}"
        else:
            paragraphs.append(text)
        end = found.end()
    return "\n\n".join(_telling(paragraphs))


def _telling(comments: Iterable[str]) -> Iterator[str]:
    """The comments that say something to those who do not see the code beside them."""
    return (comment for comment in comments if len(comment) >= _TELLING_CHARACTERS)


def _pieces(text: str, size: int) -> Iterator[str]:
    """The text in stretches of about `size` characters, cut before headings or else between paragraphs."""
    sections = (piece for section in _HEADING.split(text) for piece in _cut(section, size))
    return _gathered(sections, size)


def _cut(section: str, size: int) -> Iterator[str]:
    if len(section) <= size:
        return iter((section,))
    return _gathered((f"{paragraph}\n\n" for paragraph in re.split(r"(?<=\n)\s*\n", section)), size)


def _gathered(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Pieces put together as long as they stay within `size`; a small rest at the end goes with what is before it."""
    gathered = [""]
    for piece in pieces:
        if gathered[-1] and len(gathered[-1]) + len(piece) > size:
            gathered.append("")
        gathered[-1] += piece
    if len(gathered) > 1 and len(gathered[-1]) < size // 4:
        gathered[-2:] = ["".join(gathered[-2:])]
    return (one for one in gathered if one.strip())
