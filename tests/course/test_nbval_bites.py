"""nbval with sanitize.cfg fails on every altered output that matters, and on nothing else."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from kvlab.course.build import build_notebooks, check_notebooks
from kvlab.course.normalise import ADDRESS, MEASURED, UUID, WIDGET_VIEW

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SANITIZE = HERE / "sanitize.cfg"
PLAYER = "application/vnd.kvlab.player.v1+json"
PLOTLY = "application/vnd.plotly.v1+json"

Outputs = list[NotebookNode]


def data_of(outputs: Outputs, mime: str) -> NotebookNode:
    return next(output.data for output in outputs if mime in output.get("data", {}))


def other_digit(mime: str) -> Callable[[Outputs], None]:
    """Change the last digit of a textual output, such as a block id or a waste figure."""

    def change(outputs: Outputs) -> None:
        data = data_of(outputs, mime)
        data[mime] = re.sub(r"(\d)(\D*)$", lambda m: f"{(int(m[1]) + 1) % 10}{m[2]}", data[mime])

    return change


def other_number(mime: str) -> Callable[[Outputs], None]:
    """Change the first number found in a JSON output."""

    def change(outputs: Outputs) -> None:
        holder, key = next(numbers(data_of(outputs, mime)[mime]))
        holder[key] += 1

    return change


def numbers(value: NotebookNode | list) -> Iterator[tuple[NotebookNode | list, str | int]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from numbers(item)
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield value, key


def other_stream(outputs: Outputs) -> None:
    outputs[0].text = outputs[0].text.replace("12.5", "12.6")


def other_clock(outputs: Outputs) -> None:
    outputs[0].text = re.sub(MEASURED, "measured: 987 µs [too noisy]", outputs[0].text)


def other_address(outputs: Outputs) -> None:
    outputs[0].text = re.sub(ADDRESS, "at 0x7fee", outputs[0].text)


def with_widget_view(outputs: Outputs) -> None:
    data_of(outputs, "image/svg+xml")[WIDGET_VIEW] = {"model_id": "f" * 32}


PICTURE = """\
class Picture:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "blocks 7 1 3", "text/html": "<p>block 7</p>",
                "image/svg+xml": "<svg><text>block 7</text></svg>",
                "application/vnd.kvlab.player.v1+json": {"frames": [[7, 1], [3]]}}
"""
CLOCK = "import time\nprint(f'measured: {time.perf_counter() % 1e-3 * 1e3:.3f} ms [agrees], waste 12.5 %')"
CHART = (
    "import plotly.graph_objects as go\n"
    "go.Figure(go.Bar(y=[96.3, 3.7]), layout={'template': 'none'}).show('plotly_mimetype')"
)
# One cell a case: what it shows, how its stored output is altered, and whether nbval must fail on it.
CASES: list[tuple[str, Callable[[Outputs], None], bool]] = [
    ("Picture()", other_digit("text/plain"), True),
    ("Picture()", other_digit("text/html"), True),
    ("Picture()", other_digit("image/svg+xml"), True),
    ("Picture()", other_number(PLAYER), True),
    ("Picture()", lambda outputs: outputs.clear(), True),
    ("Picture()", lambda outputs: outputs.append(copy.deepcopy(outputs[0])), True),
    ("Picture()", with_widget_view, False),
    (CHART, other_number(PLOTLY), True),
    (CLOCK, other_stream, True),
    (CLOCK, other_clock, False),
    (CLOCK, lambda outputs: outputs[0].update(name="stderr"), True),
    ("print(object())", other_address, False),
    ("print(object())", lambda outputs: None, False),
]


def failed_cells(path: Path) -> set[int]:
    """Numbers of the code cells (from 0) on which nbval fails."""
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(path.parent), str(path)]
    command += ["-p", "no:cacheprovider", "--color=no", "-rfEp", "-q", "--nbval", "--nbval-current-env"]
    command += [f"--nbval-sanitize-with={SANITIZE}", "--nbval-cell-timeout=120"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    results = re.findall(r"^(PASSED|FAILED) \S*::Cell (\d+)", run.stdout, re.MULTILINE)
    assert results, run.stdout
    return {int(number) for word, number in results if word == "FAILED"}


def code_of(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_each_altered_output_fails_its_cell_and_noise_fails_none(course):
    course.write(PICTURE, *(source for source, _, _ in CASES))
    build_notebooks(course.root, None, report=course.reported.append)
    assert failed_cells(course.path()) == set()

    def alter(cells: list[NotebookNode]) -> None:
        for cell, (_, change, _) in zip(cells[1:], CASES, strict=True):
            change(cell.outputs)

    course.edit(alter)
    expected = {number for number, (_, _, fails) in enumerate(CASES, 1) if fails}
    assert failed_cells(course.path()) == expected


def test_what_nbval_passes_in_silence_the_check_finds(course):
    """A cell with neither count nor outputs: the hole in nbval, closed by the seals."""
    course.write("print(7)", "print(1)")
    build_notebooks(course.root, None, report=course.reported.append)
    course.edit(lambda cells: [cell.update(outputs=[], execution_count=None) for cell in cells])
    assert failed_cells(course.path()) == set()
    problems = check_notebooks(course.root, None, report=course.reported.append)
    assert [problem.split(":")[0] for problem in problems] == ["notebooks/01_small.ipynb"] * 4


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/solutions/0[12]_*.ipynb")), ids=lambda path: path.stem)
def test_altered_block_ids_figures_and_pictures_of_a_real_lesson_fail(path: Path, tmp_path: Path):
    """In the lesson itself: a digit in a text, a digit in a picture, a number in a player's frames."""
    notebook = nbformat.read(path, as_version=4)
    kinds = {
        "image/svg+xml": other_digit("image/svg+xml"),
        PLAYER: other_number(PLAYER),
        PLOTLY: other_number(PLOTLY),
        "text/html": other_digit("text/html"),
        "text/plain": other_digit("text/plain"),
    }
    expected: set[int] = set()
    for mime, change in kinds.items():
        for number, cell in enumerate(code_of(notebook)):
            if number in expected or "measured:" in str(cell) or "nbval-ignore-output" in str(cell.metadata):
                continue
            before = copy.deepcopy(cell.outputs)
            if any(mime in output.get("data", {}) for output in cell.outputs):
                change(cell.outputs)
            if cell.outputs != before:
                expected.add(number)
                break
    assert len(expected) >= 3
    altered = tmp_path / path.name
    nbformat.write(notebook, altered)
    assert failed_cells(altered) == expected


def test_nbval_masks_exactly_what_the_build_masks():
    rules = re.findall(r"^regex: (.*)\nreplace: (.*)$", SANITIZE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [regex for regex, _ in rules] == [UUID, ADDRESS, MEASURED]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("measured: 12.3 ms/token, waste 7.03 %", "measured: TIME, waste 7.03 %"),
        ("measured: 1,234.5 µs | 3 blocks", "measured: TIME | 3 blocks"),
        ("measured: 5.00 [too noisy]; stored 4.9", "measured: TIME; stored 4.9"),
        ("measured: 3e-05 s [agrees]</td>", "measured: TIME</td>"),
        ("modelled: 12.3 ms", "modelled: 12.3 ms"),
        ("measured: 12 34 blocks", "measured: TIME 34 blocks"),
    ],
)
def test_the_mask_of_clock_readings_covers_the_reading_and_nothing_behind_it(text: str, masked: str):
    assert re.sub(MEASURED, "measured: TIME", text) == masked
