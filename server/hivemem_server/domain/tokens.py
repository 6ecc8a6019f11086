"""How many tokens a text takes, without a tokenizer."""

from __future__ import annotations

BYTES_PER_TOKEN = 3
MESSAGE_OVERHEAD = 4


def estimated_tokens(text: str) -> int:
    """A third of the bytes of UTF-8, rounded up: more than any current model's tokenizer needs for prose or code."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def cut_to_tokens(text: str, most: int) -> str:
    """The text, cut at a word with an ellipsis if it takes more than `most` tokens."""
    if estimated_tokens(text) <= most:
        return text
    room = max(0, most * BYTES_PER_TOKEN - len("…".encode()))
    cut = text.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
    at_word = cut.rsplit(None, 1)[0] if " " in cut[-80:] else cut
    return at_word.rstrip() + "…"
