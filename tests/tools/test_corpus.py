"""Reading the training text: verses, novels, R's files, and what is held out."""

import hashlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st


def test_verses_become_chapters():
    from train.corpus import verses_to_chapters

    lines = [
        "Ge1:1 In the  beginning.",
        "Ge1:2 And the earth.",
        "Ge2:1 Thus.",
        "1Sm1:1 Now there was.",
        "2Sm1:1 Now it.",
    ]
    found = verses_to_chapters(lines, "B")
    assert [(each.name, each.text) for each in found] == [
        ("Ge 1", "In the beginning.\nAnd the earth."),
        ("Ge 2", "Thus."),
        ("1Sm 1", "Now there was."),
        ("2Sm 1", "Now it."),
    ]
    assert {each.source for each in found} == {"B"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Genesis"], "not a verse: 'Genesis'"),
        (["Ge1:1 a", ""], "not a verse: ''"),
        (["Ge1:1 a", "Ge1:3 b"], "Ge 1:3 after verse 1"),
        (["Ge1:2 a"], "Ge 1:2 after verse 0"),
        (["Ge1:1 a", "Ge1:1 a"], "Ge 1:1 after verse 1"),
    ],
)
def test_broken_verses_are_named(lines, said):
    from train.corpus import verses_to_chapters

    with pytest.raises(ValueError, match=said):
        verses_to_chapters(lines, "B")


NOVEL = """\
A TITLE

CHAPTER I

It was _she_ who
  spoke of chapter
one.

He left.


VOLUME II

Chapter 2.

The end was near.

FINIS
"""


def test_a_novel_becomes_chapters():
    from train.corpus import novel_to_chapters

    found = novel_to_chapters(NOVEL.splitlines(), "A Title")
    assert [(each.name, each.text) for each in found] == [
        ("A Title 1", "It was she who spoke of chapter one.\nHe left."),
        ("A Title 2", "The end was near."),
    ]


def test_text_without_chapters_is_one_document(tmp_path):
    from train.corpus import text_file

    path = tmp_path / "speech.txt"
    path.write_text("Four score\nand seven.\n\nNow we\n", encoding="utf-8")
    source = text_file(path)
    assert [each.text for each in source.documents] == ["Four score and seven.\nNow we"]
    assert source.origin == "file speech.txt"


def test_a_record_checks_the_text_as_used():
    from train.corpus import Document, Source

    source = Source("s", "package 1.0", "public domain", (Document("s", "1", "é"), Document("s", "2", "b")))
    assert source.record() == {
        "name": "s",
        "origin": "package 1.0",
        "status": "public domain",
        "documents": 2,
        "bytes": 5,
        "sha256": hashlib.sha256("é\nb\n".encode()).hexdigest(),
    }


def r_object(strings, kind=16):
    """One object as R writes it into a lazy-load database."""
    raw = b"X\n" + struct.pack(">IIII", 3, 0x040201, 0x030500, 5) + b"UTF-8" + struct.pack(">II", kind, len(strings))
    for each in strings:
        raw += struct.pack(">II", 0x40009, len(each.encode())) + each.encode()
    return struct.pack(">I", len(raw)) + zlib.compress(raw)


@given(st.lists(st.lists(st.text(max_size=9), max_size=5), max_size=3))
def test_r_vectors_come_back(books):
    from train.corpus import r_character_vectors

    assert list(r_character_vectors(b"".join(map(r_object, books)))) == books


def test_other_r_objects_are_refused():
    from train.corpus import r_character_vectors

    with pytest.raises(ValueError, match="type 13"):
        list(r_character_vectors(r_object(["a"], kind=13)))
    with pytest.raises(ValueError, match="of 1 bytes"):
        list(r_character_vectors(struct.pack(">I", 1) + r_object(["a"])[4:]))


@given(st.lists(st.integers(1, 80), min_size=1, max_size=4), st.floats(0.01, 0.5), st.integers(0, 9))
def test_the_split_is_a_partition_of_every_source(counts, share, seed):
    from train.corpus import Document, split

    documents = [Document(str(source), str(n), "x") for source, count in enumerate(counts) for n in range(count)]
    train, held_out = split(documents, share, seed)
    assert sorted(train + held_out, key=documents.index) == documents
    assert [each for each in documents if each in held_out] == held_out
    for source, count in enumerate(counts):
        drawn = sum(each.source == str(source) for each in held_out)
        assert drawn == (0 if count == 1 else max(1, round(share * count)))
    assert (train, held_out) == split(documents, share, seed)


def test_the_seed_changes_what_is_held_out():
    from train.corpus import Document, split

    documents = [Document("s", str(n), "x") for n in range(200)]
    assert split(documents, 0.1, 1)[1] != split(documents, 0.1, 2)[1]
