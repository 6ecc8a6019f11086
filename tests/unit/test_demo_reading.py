"""What the researchers of the demo read, how it is shared out, and what becomes of a model's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hivemem import condense
from hivemem_server.demo import folder, model
from hivemem_server.demo.voice import Note, Quoting, Speaking, without_citations

PROSE = "The harbour keeps one log of all arrivals. Every ship reports by radio before it enters the harbour."


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_texts_and_comments_are_read_and_everything_else_is_left(tmp_path: Path) -> None:
    written(
        tmp_path,
        notes_dot_md=PROSE,
        node_modules__x_dot_md=PROSE,
        _dot_hidden_dot_md=PROSE,
        image_dot_png=PROSE,
        empty_dot_md="# Only a heading",
        a_pb2_dot_py=f'"""{PROSE}"""',
        b_dot_py=f'"""{PROSE}"""\nx = 1  # no docstring',
        c_dot_proto=f"// {PROSE}\nmessage M {{}}\n// Short.\nmessage N {{}}",
        d_dot_sql=f"-- {PROSE}\nSELECT 1;",
        e_dot_yaml=f"# {PROSE}\nkey: value",
    )
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")

    reading = folder.choose(tmp_path, start=tmp_path)

    assert reading.files == ["b.py", "c.proto", "d.sql", "e.yaml", "notes.md"]
    for file in reading.files:
        (part,) = folder.parts(tmp_path, file)
        assert condense.split(part.text) == condense.split(PROSE)


def test_documents_come_before_sources_when_there_are_too_many(tmp_path: Path) -> None:
    for number in range(folder.MOST_FILES):
        written(tmp_path, **{f"source{number:02}_dot_py": f'"""{PROSE}"""', f"text{number % 5}_dot_md": PROSE})

    reading = folder.choose(tmp_path, start=tmp_path)

    assert len(reading.files) == folder.MOST_FILES
    assert [file for file in reading.files if file.endswith(".md")] == [f"text{number}.md" for number in range(5)]
    assert reading.left_out == 5


def test_the_project_around_a_folder_is_found_or_else_the_package(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        README_dot_md=PROSE,
        pyproject_dot_toml="",
        protos__hivemem__a_dot_proto=f"// {PROSE}",
        docs__a_dot_md=PROSE,
    )
    (root / "deep" / "down").mkdir(parents=True)

    inside = folder.choose(None, start=root / "deep" / "down")
    outside = folder.choose(None, start=Path("/"))

    assert inside.files == ["README.md", "docs/a.md"]
    assert "hivemem/condense.py" in outside.files
    assert "installed package" in outside.description


def test_every_part_is_read_by_one_and_files_are_torn_only_if_there_is_one(tmp_path: Path) -> None:
    long = "\n\n".join(f"## Heading {number}\n\n{PROSE * 8}" for number in range(10))
    written(tmp_path, a_dot_md=long, b_dot_md=PROSE, c_dot_md=PROSE)

    shares = folder.divide(tmp_path, ["a.md", "b.md", "c.md"], 2)
    alone = folder.divide(tmp_path, ["a.md"], 2)
    nothing = folder.divide(tmp_path, ["b.md"], 2)

    parts = [("a.md", index) for index in range(len(folder.parts(tmp_path, "a.md")))]
    assert 2 <= len(parts) <= 5
    assert shares == [parts, [("b.md", 0), ("c.md", 0)]]
    assert sorted(alone[0] + alone[1]) == parts
    assert all(alone)
    assert nothing == [[("b.md", 0)], []]


async def test_a_quoted_section_says_what_fits_once_and_cites_all_that_say_it() -> None:
    ship, pilot = (
        "Every ship reports by radio before it enters.",
        "A pilot boards every ship of more than forty metres.",
    )
    notes = [
        Note(position=3, sentences=[ship, "The moon is made of cheese and of nothing else."]),
        Note(position=5, sentences=[pilot]),
        Note(position=8, sentences=[ship]),
    ]

    first, second = await Quoting().section("Ships", notes, set())
    again = await Quoting().section("Ships", notes, {first.text, second.text})

    assert (str(first), str(second)) == (f"{ship} [3][8]", f"{pilot} [5]")
    assert without_citations(f"- {first}") == ship
    assert [statement.text for statement in again] == ["The moon is made of cheese and of nothing else."]


class Scripted(model.Model):
    """A model with fixed answers; None fails."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    async def answer(self, instruction: str, text: str) -> str:
        said = self.answers.pop(0)
        if said is None:
            raise model.ModelFailed("the model sleeps")
        return said


@pytest.fixture
def notices() -> list[str]:
    return []


async def test_a_model_is_taken_at_its_word_only_where_it_cites_what_it_was_given(notices: list[str]) -> None:
    notes = [Note(position=3, sentences=["a"]), Note(position=5, sentences=["b"])]
    voice = Speaking(
        Scripted("* Ships report [3, 5].\nNo source.\nA wrong source [4].", "Read.\nDECISION: Paper.\nOPEN: Fog."),
        notices.append,
    )

    said = await voice.section("Ships", notes, set())
    finding = await voice.finding("text")

    assert [(one.text, list(one.cites)) for one in said] == [("Ships report.", [3, 5])]
    assert (finding.summary, finding.decisions, finding.open_points) == ("Read.", ["Paper."], ["Fog."])
    assert notices == []


async def test_a_model_that_fails_is_asked_no_more(notices: list[str]) -> None:
    voice = Speaking(Scripted(None), notices.append)

    found = [await voice.finding(PROSE), await voice.finding(PROSE)]

    assert found == [await Quoting().finding(PROSE)] * 2
    assert notices == ["the model sleeps: quoting from here on"]


def test_the_environment_chooses_the_model() -> None:
    assert model.name({}) is None
    assert model.name({"HIVEMEM_DEMO_MODEL": "m"}) is None
    assert model.name({"OPENAI_API_KEY": "k"}) == model.DEFAULT_MODEL
    assert model.name({"OPENAI_BASE_URL": "http://127.0.0.1/v1", "HIVEMEM_DEMO_MODEL": "m"}) == "m"
