"""Public-domain English as documents (one a chapter), and which of them are held out."""

from __future__ import annotations

import hashlib
import io
import random
import re
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

VERSE = re.compile(r"^([1-3]?[A-Za-z]+)(\d+):(\d+) (.*)$")
CHAPTER = re.compile(r"^(?:chapter|CHAPTER|Chapter) (?:[IVXLC]+|\d+)\.?$")
FURNITURE = re.compile(r"^\s*(VOLUME [IVX]+|FINIS|Finis|THE END)\s*$")


@dataclass(frozen=True)
class Document:
    """One chapter: where it is from, its name there, its text."""

    source: str
    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """A text as it was used. `sha256` is that of the UTF-8 bytes of all its documents, each followed by a line feed."""

    name: str
    origin: str
    status: str
    documents: tuple[Document, ...]

    def record(self) -> dict[str, object]:
        """What the log and the card say about it."""
        text = "".join(document.text + "\n" for document in self.documents).encode()
        kept = {key: value for key, value in asdict(self).items() if key != "documents"}
        return kept | {
            "documents": len(self.documents),
            "bytes": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
        }


def verses_to_chapters(lines: Iterable[str], source: str) -> tuple[Document, ...]:
    """Lines such as `Ge1:1 In the beginning ...` as one document a chapter, one line a verse, without the numbers.

    Raises `ValueError` for a line of another form and for a verse out of order.
    """
    chapters: dict[str, list[str]] = {}
    for line in lines:
        match = VERSE.match(line)
        if match is None:
            raise ValueError(f"not a verse: {line[:60]!r}")
        book, chapter, verse, text = match.groups()
        texts = chapters.setdefault(f"{book} {chapter}", [])
        if int(verse) != len(texts) + 1:
            raise ValueError(f"{book} {chapter}:{verse} after verse {len(texts)}")
        texts.append(" ".join(text.split()))
    return tuple(Document(source, name, "\n".join(texts)) for name, texts in chapters.items())


def novel_to_chapters(lines: Iterable[str], source: str) -> tuple[Document, ...]:
    """The chapters of a novel as documents: what stands before the first heading is dropped, headings too.

    Wrapped lines are joined, one line a paragraph; underscores (italics) go. A text without headings is one document.
    """
    lines = list(lines)
    starts = [at for at, line in enumerate(lines) if CHAPTER.match(line.strip())]
    documents = []
    for number, (start, end) in enumerate(zip(starts or [-1], [*starts[1:], len(lines)], strict=True), start=1):
        kept = ["" if FURNITURE.match(line) else line.replace("_", "") for line in lines[start + 1 : end]]
        paragraphs = re.split(r"\n\s*\n", "\n".join(kept))
        text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
        documents.append(Document(source, f"{source} {number}", text))
    return tuple(documents)


def king_james() -> Source:
    """The Bible of Debian's bible-kjv-text, as its `bible` program (package bible-kjv) prints it."""
    answer = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], input="", capture_output=True, text=True, check=True)
    version = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "bible-kjv-text"], capture_output=True, text=True, check=True
    )
    return Source(
        "King James Bible",
        f"Debian package bible-kjv-text {version.stdout}",
        "public domain: a translation of 1611, copyright expired (the package's copyright file)",
        verses_to_chapters(answer.stdout.splitlines(), "King James Bible"),
    )


AUSTEN = ("Emma", "Mansfield Park", "Northanger Abbey", "Persuasion", "Pride and Prejudice", "Sense and Sensibility")
LEFT_OUT = "Northanger Abbey"  # its file ends in a modern edition's note and follows that edition's spelling


def austen(package: Path) -> list[Source]:
    """Five novels out of Debian's r-cran-janeaustenr, `package` being the .deb file; R isn't needed."""
    told = subprocess.run(["dpkg-deb", "-f", package, "Package", "Version"], capture_output=True, text=True, check=True)
    fields = dict(line.split(": ", 1) for line in told.stdout.splitlines())
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        member = files.extractfile("./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
        assert member is not None
        books = list(r_character_vectors(member.read()))
    return [
        Source(
            f"Jane Austen, {title}",
            f"Debian package {fields['Package']} {fields['Version']}",
            "public domain: published 1811-1818, author died 1817",
            novel_to_chapters(lines, title),
        )
        for title, lines in zip(AUSTEN, books, strict=True)
        if title != LEFT_OUT
    ]


def r_character_vectors(database: bytes) -> Iterator[list[str]]:
    """The character vectors of an R lazy-load database: per object a length, then zlib over R's XDR serialization."""
    while database:
        (size,) = struct.unpack(">I", database[:4])
        stream = zlib.decompressobj()
        raw = stream.decompress(database[4:])
        database = stream.unused_data
        at = 18 + struct.unpack(">I", raw[14:18])[0]  # "X\n", three versions, the native encoding's name
        kind, count = struct.unpack(">II", raw[at : at + 8])
        if len(raw) != size or raw[:2] != b"X\n" or kind & 0xFF != 16:
            raise ValueError(f"not a character vector of R: type {kind & 0xFF}, {len(raw)} of {size} bytes")
        at += 8
        strings = []
        for _ in range(count):
            (length,) = struct.unpack(">i", raw[at + 4 : at + 8])
            strings.append(raw[at + 8 : at + 8 + length].decode())
            at += 8 + length
        yield strings


def text_file(path: Path) -> Source:
    """Any UTF-8 text file; the reader vouches for its status."""
    documents = novel_to_chapters(path.read_text(encoding="utf-8").splitlines(), path.stem)
    return Source(path.stem, f"file {path.name}", "given by whoever ran the training", documents)


def split(documents: Iterable[Document], share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """(train, held out): of each source `share` of its documents, at least one, drawn with `seed`; order is kept.

    A source of a single document is trained on.
    """
    by_source: dict[str, list[Document]] = {}
    for document in documents:
        by_source.setdefault(document.source, []).append(document)
    train: list[Document] = []
    held_out: list[Document] = []
    for source, group in by_source.items():
        count = min(max(1, round(share * len(group))), len(group) - 1)
        drawn = set(random.Random(f"{seed} {source}").sample(range(len(group)), count))
        for at, document in enumerate(group):
            (held_out if at in drawn else train).append(document)
    return train, held_out
