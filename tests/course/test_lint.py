"""What a notebook must not contain."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvlab.course.lint import MOST_BYTES, lint


def of(*cells: nbformat.NotebookNode) -> list[str]:
    return lint(new_notebook(cells=list(cells)), 1000)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import ipywidgets as w\nw.Output()", "Output widget"),
        ("from ipywidgets import Output", "Output widget"),
        ("from ipywidgets import interact", "interact"),
        ("widgets.interactive(f, x=3)", "interact"),
        ("go.FigureWidget()", "FigureWidget"),
        ("clear_output(wait=True)", "replaced"),
        ("%pip install kvlab", "magics"),
        ("!ls", "magics"),
        ("    %%time", "magics"),
        ("import requests", "network"),
        ("x = 1\ny = '" + "b" * 100 + "'", "sideways"),
        ("from urllib.request import urlopen", "network"),
        ("HTML('<script src=x>')", "from the network"),
        ("url = 'https://cdn.plot.ly/plotly.js'", "from the network"),
        ("# TO" + "DO: explain", "unfinished"),
    ],
)
def test_code_is_refused(source: str, why: str):
    problems = of(new_code_cell(source))
    assert len(problems) == 1
    assert problems[0].startswith("cell 1: ")
    assert why in problems[0]


@pytest.mark.parametrize(
    "source",
    [
        "waste % block_size",
        "interaction = 1",
        "x = (a\n     % b)",
        "outputs = []",
        "from kvlab.course import quiz",
    ],
)
def test_ordinary_code_is_not(source: str):
    assert of(new_code_cell(source)) == []


def test_prose_may_link_but_not_use_directives_or_the_network():
    assert of(new_markdown_cell("See [the paper](https://arxiv.org/abs/2309.06180), `{x}` and $\\frac{a}{b}$.")) == []
    assert "raw text" in of(new_markdown_cell(":::{note}\nx\n:::"))[0]
    assert "raw text" in of(new_markdown_cell("```{note}\nx\n```"))[0]
    assert "network" in of(new_markdown_cell("<script src='https://unpkg.com/x'></script>"))[0]


@pytest.mark.parametrize(
    "output",
    [
        new_output("stream", text="wrote /tmp/x.csv"),
        new_output("error", ename="OSError", evalue="'/home/me/x'"),
        new_output("display_data", data={"text/html": "<p>/Users/me/x</p>"}),
        new_output("display_data", data={"application/json": {"file": "C:\\Users\\me"}}),
    ],
)
def test_a_path_of_this_machine_in_any_kind_of_output_is_refused(output: nbformat.NotebookNode):
    assert "an absolute path" in of(new_code_cell("x", outputs=[output]))[0]


def test_addresses_fractions_and_closing_tags_are_no_paths():
    text = "https://example.org/usr/lib 3/4 </var> tokens/tmp"
    assert of(new_code_cell("x", outputs=[new_output("stream", text=text)])) == []


def test_a_notebook_over_a_megabyte_is_refused():
    assert "cannot be reviewed" in lint(new_notebook(), MOST_BYTES + 1)[0]
