"""Building notebooks: the same bytes each time, whole or not at all."""

import itertools
import json
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from kvlab.course.build import build_notebooks, check_notebooks
from kvlab.course.checks import CHECK_MIME
from kvlab.course.lesson import LessonError
from kvlab.errors import InvalidInput

EXERCISE = """\
from kvlab.course import case, check

def double(n):
    # solution
    return 2 * n
    # end solution"""
CHECKED = 'check("Double", double, [case(2, expect=4)])'
LIVELY = """\
import time
import uuid
import warnings
import ipywidgets
import plotly.graph_objects as go

class Picture(ipywidgets.HTML):
    def _repr_mimebundle_(self, **kwargs):
        state = {"blocks": [7, 1, 3]}
        return super()._repr_mimebundle_(**kwargs) | {
            "text/plain": "a picture", "image/svg+xml": "<svg><text>7</text></svg>",
            "application/vnd.kvlab.player.v1+json": state}

print(f"measured: {time.perf_counter() % 1e-3 * 1e3:.4f} ms", uuid.uuid4(), object())
Picture(value="<b>7</b>")"""
WRONG = """\
def halve(n):
    return n // nothing

check("Halve", halve, [case(4, expect=2)])"""
CHART = """go.Figure(go.Bar(x=["paged"], y=[3.7])).update_layout(template="none").show("plotly_mimetype")"""


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "notebooks").rglob("*"))
        if path.is_file()
    }


def test_a_lesson_with_a_widget_a_chart_and_a_clock_is_built_twice_to_the_same_bytes(course):
    course.write(LIVELY, CHART, EXERCISE, CHECKED, WRONG)
    first = build_notebooks(course.root, None, report=course.reported.append)
    assert [path.relative_to(course.root).as_posix() for path in first] == [
        "notebooks/01_small.ipynb",
        "notebooks/solutions/01_small.ipynb",
    ]
    built = files(course.root)
    assert build_notebooks(course.root, ["01"], report=course.reported.append) == []
    assert files(course.root) == built
    assert check_notebooks(course.root, None, report=course.reported.append) == []
    assert sorted(line.split()[0] for line in course.reported) == ["built"] * 2 + ["ok"] * 2 + ["unchanged"] * 2

    notebook = course.notebook()
    text = json.dumps(notebook)
    assert "widget-view" not in text
    assert "widgets" not in notebook.metadata
    assert "0x7" not in text
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5]
    picture = code[0].outputs[1].data
    assert picture["application/vnd.kvlab.player.v1+json"] == {"blocks": [7, 1, 3]}
    assert picture["image/svg+xml"].startswith("<svg>")
    assert code[1].outputs[0].data["application/vnd.plotly.v1+json"]["data"][0]["y"] == [3.7]

    assert "...  # your code here (about 1 line)" in code[2].source
    assert code[3].outputs[0].data[CHECK_MIME]["status"] == "not yet"
    found = code[4].outputs[0].data[CHECK_MIME]["found"]
    assert found.startswith("NameError: name 'nothing' is not defined")
    assert found.endswith("in line 2 of its cell: return n // nothing")
    assert not any("For the instructor" in cell.source for cell in notebook.cells)
    solution = course.notebook(solution=True)
    assert solution.cells[-1].source.startswith("<details><summary>For the instructor")
    assert solution.cells[4].outputs[0].data[CHECK_MIME]["status"] == "passed"


def test_a_failing_cell_leaves_the_old_notebook_and_names_lesson_cell_and_error(course):
    course.write("x = 1\nx")
    build_notebooks(course.root, None, report=course.reported.append)
    before = files(course.root)
    course.write("x = 1\nx", "y = {}\ny['b']")
    with pytest.raises(LessonError, match=r"notebooks/01_small.ipynb, cell 3 \(`y = \{\}` ...\): KeyError: 'b'"):
        build_notebooks(course.root, None, report=course.reported.append)
    assert files(course.root) == before


def test_a_warning_an_expected_error_that_does_not_come_and_an_output_path_fail_the_build(course):
    course.write("import warnings\nwarnings.warn('careful')", stem="01_warning")
    course.write("1 + 1", stem="02_calm", tags=":tags: [raises-exception]\n\n")
    course.write("'/home/somebody/kvlab'", stem="03_path")
    course.write("3 + 3", stem="04_good")
    with pytest.raises(LessonError) as failure:
        build_notebooks(course.root, None, report=course.reported.append)
    message = str(failure.value)
    assert "01_warning.ipynb, cell 2" in message
    assert "UserWarning: careful" in message
    assert "02_calm.ipynb, cell 2 (`1 + 1` ...): is tagged raises-exception and raised nothing" in message
    assert "03_path.ipynb: cell 2: an absolute path in the output: '/home/s'" in message
    assert list(files(course.root)) == ["notebooks/04_good.ipynb", "notebooks/solutions/04_good.ipynb"]


def test_an_expected_error_is_stored_without_frames(course):
    course.write("raise MemoryError('no free block')", tags=":tags: [raises-exception]\n\n")
    build_notebooks(course.root, None, report=course.reported.append)
    (output,) = course.notebook().cells[1].outputs
    assert output.traceback == ["MemoryError: no free block"]


def test_ctrl_c_stops_at_once_and_leaves_the_old_notebook(course):
    course.write("import time\ntime.sleep(100)")
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        build_notebooks(course.root, None, report=course.reported.append)
    assert files(course.root) == {}
    assert psutil.Process().children() == [], "the kernels are gone"


def test_without_execution_the_notebooks_are_written_but_do_not_pass_the_check(course):
    course.write("1 + 1")
    build_notebooks(course.root, None, execute=False, report=course.reported.append)
    problems = check_notebooks(course.root, None, report=course.reported.append)
    assert any("01_small.ipynb: cell 2 was never executed" in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# 01 · No front matter", "front matter"),
        ("---\nkvlab: {core_minutes: 40, deeper_minutes: 0}\n---\n\n# 01", "1 to 25"),
        (
            '---\nkvlab: {core_minutes: 4, deeper_minutes: 0}\n---\n\n+++ {"tags": ["depper"]}\n\n# 01',
            "depper",
        ),
        ("---\nkvlab: {core_minutes: 4\n---\n\n# 01", "cannot be read"),
        (
            "---\nkvlab: {core_minutes: 4, deeper_minutes: 0}\n---\n\n```{code-cell}\n# solution\nx\n```",
            "never closed",
        ),
        ("---\nkvlab: {core_minutes: 4, deeper_minutes: 0}\n---\n\n```{code-cell}\n!ls\n```", "magics"),
    ],
)
def test_a_lesson_that_cannot_be_built_is_refused_before_anything_runs(course, text: str, words: str):
    (course.root / "lessons" / "01_bad.md").write_text(text)
    with pytest.raises(LessonError, match=words):
        build_notebooks(course.root, None, report=course.reported.append)
    assert files(course.root) == {}


def test_an_unknown_or_misnamed_lesson_is_refused_with_what_there_is(course):
    course.write("1")
    with pytest.raises(InvalidInput, match=r"no lesson '07' in lessons/; there are: 01_small"):
        build_notebooks(course.root, ["07"], report=course.reported.append)
    (course.root / "lessons" / "notes.md").write_text("# Notes")
    with pytest.raises(InvalidInput, match=r"lessons/notes.md: a lesson is named NN_name.md"):
        check_notebooks(course.root, None, report=course.reported.append)


def test_identical_cells_have_ids_of_their_own_and_an_untouched_cell_keeps_its_id(course):
    course.write("x = 1", "x = 1", "y = 2")
    build_notebooks(course.root, None, execute=False, report=course.reported.append)
    before = [cell.id for cell in course.notebook().cells]
    assert len(set(before)) == len(before)
    course.write("x = 1", "x = 1", "y = 3")
    build_notebooks(course.root, None, execute=False, report=course.reported.append)
    after = [cell.id for cell in course.notebook().cells]
    changed = [one != other for one, other in itertools.zip_longest(before, after)]
    assert changed == [False, False, False, True, False]


def test_a_kernel_that_dies_is_an_error_like_any_other(course):
    course.write("import os\nos.abort()")
    with pytest.raises(LessonError, match=r"01_small.ipynb, cell 2 .*the kernel died"):
        build_notebooks(course.root, None, report=course.reported.append)
