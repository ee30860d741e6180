"""`kvlab check` finds what no longer agrees, without running it; strictly, by running it."""

import pytest

from kvlab.course.build import build_notebooks, check_notebooks


@pytest.fixture
def built(course):
    course.write("x = 3\nprint(x)", "[x, x]", "quiet = 1")
    build_notebooks(course.root, None, report=course.reported.append)
    return course


def problems(course, **options: bool) -> str:
    return "\n".join(check_notebooks(course.root, None, report=course.reported.append, **options))


def test_everything_that_can_happen_to_a_built_notebook_is_found(built):
    original = built.path().read_text()
    assert problems(built) == ""

    def clear_all(cells):
        for cell in cells:
            cell.outputs, cell.execution_count = [], None

    edits = {
        "cell 2 was never executed": clear_all,
        "cell 3: outputs or source were changed": lambda cells: cells[1].outputs.clear(),
        "cell 2: outputs or source were changed": lambda cells: cells[0].outputs[0].update(text="4\n"),
        "cell 4: outputs or source were changed": lambda cells: cells[2].update(outputs=cells[0].outputs),
        "cell 3 has count [7]": lambda cells: cells[1].update(execution_count=7),
        "cell 3 was not written by `kvlab build`": lambda cells: cells[1].metadata.clear(),
        "cell 3 is not the lesson's": lambda cells: cells[1].update(source="[x]"),
        "is not a valid notebook": lambda cells: cells[1].pop("outputs"),
    }
    for words, change in edits.items():
        built.edit(change)
        found = problems(built)
        assert words in found, words
        assert "notebooks/01_small.ipynb" in found
        assert "run `kvlab build`" in found
        built.path().write_text(original)

    built.path().write_text("{")
    assert "is not a valid notebook (NotJSONError)" in problems(built)
    built.path().write_text(original.replace("Python 3 (ipykernel)", "my-env"))
    assert "its kernel is not python3" in problems(built)
    built.path().unlink()
    assert "notebooks/01_small.ipynb: is missing" in problems(built)
    built.path().write_text(original)
    (built.path().parent / "09_gone.ipynb").write_text(original)
    assert "notebooks/09_gone.ipynb: there is no lessons/09_gone.md" in problems(built)


def test_a_lesson_edited_after_the_build_is_found_in_both_notebooks(built):
    built.write("x = 4\nprint(x)", "[x, x]", "quiet = 1")
    found = problems(built)
    assert "notebooks/01_small.ipynb: cell 2 is not the lesson's" in found
    assert "notebooks/solutions/01_small.ipynb: cell 2 is not the lesson's" in found
    assert "+x = 4" in found


def test_outputs_kept_on_a_cell_that_was_edited_together_with_its_lesson_are_found(built):
    """What jupytext's --sync does: the source is new in both files, the outputs are those of the old code."""
    built.write("x = 3\nprint(x)", "[x, x]", "quiet = 2")
    old = [cell for cell in built.notebook().cells if cell.cell_type == "code"]
    build_notebooks(built.root, None, execute=False, report=built.reported.append)

    def keep_outputs(cells):
        for cell, before in zip(cells, old, strict=True):
            cell.update(before, source=cell.source, id=cell.id)

    built.edit(keep_outputs)
    assert "notebooks/01_small.ipynb: cell 4: outputs or source were changed" in problems(built)


def test_strict_runs_again_and_finds_outputs_that_are_no_longer_true(course):
    (course.root / "notebooks").mkdir()
    data = course.root / "notebooks" / "data.txt"
    (course.root / "notebooks" / "solutions").mkdir()
    (course.root / "notebooks" / "solutions" / "data.txt").write_text("7")
    data.write_text("7")
    course.write("from pathlib import Path", "print(Path('data.txt').read_text())")
    build_notebooks(course.root, None, report=course.reported.append)
    data.write_text("8")
    assert problems(course) == ""
    found = problems(course, strict=True)
    assert "notebooks/01_small.ipynb: stale outputs" in found
    assert '+      "8\\n"' in found
    assert "solutions" not in found


def test_the_parts_every_lesson_has_are_asked_for(course):
    front = "---\nkvlab: {core_minutes: 4, deeper_minutes: 0}\n---\n\n"
    early = "```{code-cell}\n:tags: [deeper]\n\nx = 1\n```\n\n"
    late = "## Deeper: y\n\n```{code-cell}\ny = 1\n```\n"
    (course.root / "lessons" / "02_bare.md").write_text(f"{front}# Paging\n\n{early}{late}")
    found = problems(course)
    for words in (
        "does not start with '# 02 '",
        "no collapsed box 'What does not reconcile'",
        "no cell tagged `instructor`",
        "cell 2: code is tagged `deeper` exactly if",
        "cell 4: code is tagged `deeper` exactly if",
    ):
        assert words in found
