"""Condensing quotes: what comes out stands in the text, and what matters comes out."""

from __future__ import annotations

import re

import pytest
from hivemem import condense
from hypothesis import given
from hypothesis import strategies as st

DOCUMENT = """
# The harbour office

The harbour office keeps one log of arrivals for all piers. Ships report by radio, e.g. on channel 12, before they
enter the harbour. **Every arrival** is written to the log before the pilot leaves.

| pier | depth |
|------|-------|
| 1    | 7.5   |

## Rules

- We use paper instead of a database. The log must never leave the office.
- [ ] Number the piers of the north side.
- [x] Paint the lamps.

```python
def arrive(ship): ...  # We use code here.
```

Fog signals have not been tested. See [the handbook](https://example.org/a_b) for the tides. Who keeps the spare keys?
TODO: ask Dr. Moss about the keys.
"""


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", re.sub(r"\]\([^)]*\)", " ", text)))


def test_sentences_are_those_of_the_prose() -> None:
    assert condense.split(DOCUMENT) == [
        "The harbour office keeps one log of arrivals for all piers.",
        "Ships report by radio, e.g. on channel 12, before they enter the harbour.",
        "Every arrival is written to the log before the pilot leaves.",
        "We use paper instead of a database.",
        "The log must never leave the office.",
        "Number the piers of the north side.",
        "Paint the lamps.",
        "Fog signals have not been tested.",
        "See the handbook for the tides.",
        "Who keeps the spare keys?",
        "TODO: ask Dr. Moss about the keys.",
    ]


def test_decisions_are_the_sentences_that_decide() -> None:
    assert condense.decisions(DOCUMENT) == [
        "We use paper instead of a database.",
        "The log must never leave the office.",
    ]
    assert condense.decisions("Must we go? We decided to stay. It rains.") == ["We decided to stay."]


def test_open_questions_are_marks_boxes_questions_and_what_is_not_done() -> None:
    assert condense.open_questions(DOCUMENT) == [
        "Number the piers of the north side.",
        "Fog signals have not been tested.",
        "Who keeps the spare keys?",
        "TODO: ask Dr. Moss about the keys.",
    ]
    assert condense.open_questions("# TODO weigh the anchor\nIt is heavy enough.") == ["TODO weigh the anchor"]


def test_headings_come_in_order_in_both_styles() -> None:
    text = "Title\n=====\n\n# One #\n\nSome prose.\n\n---\n\n```\n# none\n```\n## [Two](x)\n# One\n"

    assert condense.headings(text) == ["Title", "One", "Two"]


def test_a_summary_covers_what_the_text_turns_on_in_its_order() -> None:
    summary = condense.summarise(DOCUMENT, sentences=2)

    assert summary.startswith("The harbour office keeps one log of arrivals for all piers. ")
    assert len(condense.split(summary)) == 2
    assert condense.split(condense.summarise(DOCUMENT)) == sorted(
        condense.split(condense.summarise(DOCUMENT)), key=condense.split(DOCUMENT).index
    )


def test_a_summary_keeps_within_its_bytes_and_takes_all_that_fits() -> None:
    prose = "Grüße aus dem Hafen von heute. Die Möwen schreien über das Wasser hinweg. Morgen kommt ein Schiff an."

    assert condense.summarise(prose, most_bytes=10_000) == prose
    assert condense.summarise(prose, most_bytes=60) == "Grüße aus dem Hafen von heute. Morgen kommt ein Schiff an."
    assert condense.summarise(prose, most_bytes=20) == "Grüße aus dem…"


@pytest.mark.parametrize("text", ["```\nx = 1\n```", "| a | b |", "a=1;\nb=2;", "x" * 500])
def test_text_without_sentences_gives_its_first_words(text: str) -> None:
    assert condense.summarise(text, most_bytes=100)
    assert condense.split(text) == []


def test_blank_text_gives_nothing() -> None:
    assert condense.summarise(" \n\t") == ""
    assert condense.split("") == condense.decisions("") == condense.open_questions("") == condense.headings("") == []


def test_code_spans_and_names_with_stars_or_underscores_stay_as_they_are() -> None:
    text = (
        "Exclude `**/*_pb2*` and `<b>` from the `__init__` of my_own_name. Try `stop! Now` first. "
        "It is *very* important indeed."
    )

    assert condense.split(text) == [
        "Exclude `**/*_pb2*` and `<b>` from the `__init__` of my_own_name.",
        "Try `stop! Now` first.",
        "It is very important indeed.",
    ]


def test_a_sentence_ends_where_a_reader_would_end_it() -> None:
    text = (
        "Version 0.8.4 of it is out (approx. J. Doe's). See no. 5 of channel 12. It grew… and grew. "
        'Was it "done?" Yes it was! hivemem is written small. これは一つ目です。これは二つ目です。'
    )

    assert condense.split(text) == [
        "Version 0.8.4 of it is out (approx. J. Doe's).",
        "See no. 5 of channel 12.",
        "It grew… and grew.",
        'Was it "done?"',
        "Yes it was!",
        "hivemem is written small.",
        "これは一つ目です。",
        "これは二つ目です。",
    ]


def test_lines_of_a_transcript_are_not_run_together() -> None:
    assert condense.split("Ann: what about the boats\nBob: they are all at sea now") == [
        "Ann: what about the boats",
        "Bob: they are all at sea now",
    ]


def test_key_terms_are_what_several_texts_share_in_their_usual_spelling() -> None:
    texts = ["Harbours have pilots.", "The harbour has a pilot and a crane.", "A harbour without lamps."]

    assert condense.key_terms(texts, most=2) == ["harbour", "pilots"]
    assert condense.key_terms([]) == []


@given(st.text(max_size=400))
def test_any_text_is_condensed_to_what_stands_in_it(text: str) -> None:
    plain = " ".join(text.split())

    for sentence in [*condense.split(text), *condense.decisions(text), *condense.open_questions(text)]:
        assert sentence
    assert bool(condense.summarise(text)) == bool(plain)
    assert condense.summarise(text) == condense.summarise(text)
    assert len(condense.summarise(text, most_bytes=50).encode(errors="replace")) <= 50


@given(
    st.lists(st.sampled_from(["Ships sail.", "The sea is very wide.", "We must go now!", "Is it open?"]), max_size=30)
)
def test_every_sentence_of_prose_is_quoted_word_for_word(parts: list[str]) -> None:
    text = " ".join(parts)

    assert all(words(sentence) in words(text) for sentence in condense.split(text))


def test_a_long_text_is_condensed_in_a_moment_not_in_hours() -> None:
    text = " ".join(
        f"Sentence {number} speaks of topic{number % 977} and of thing{number}." for number in range(40_000)
    )

    assert len(condense.summarise(text, most_bytes=32_768).encode()) <= 32_768
