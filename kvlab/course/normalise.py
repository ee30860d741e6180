"""Executed notebooks made reproducible: what is noise, what is compared, and the bytes that are written.

Three things may differ between two honest runs, and tests/course/sanitize.cfg masks the same three for nbval:
UUIDs, object addresses, and clock readings printed as `measured: 12.3 ms`, optionally followed by the mark
`[agrees]`, `[differs]` or `[too noisy]`. Everything else is compared to the letter.
"""

import copy
import re
from typing import Any

import nbformat
from nbformat import NotebookNode

from kvlab.course.lesson import LANGUAGE

UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
ADDRESS = r"\bat 0x[0-9a-fA-F]{1,16}"
MEASURED = (
    r"measured: ?[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?[A-Za-zµ%/]+)?"
    r"(?: \[(?:agrees|differs|too noisy)\])?"
)
_ZERO_UUID = "00000000-0000-0000-0000-"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IGNORED_OUTPUT = "nbval-ignore-output"


def normalise(notebook: NotebookNode) -> None:
    """Remove the noise of one run, in place: widget state and views, traceback frames, random identifiers.

    A widget keeps its static fallback (text, SVG, HTML, our own state), which is what GitHub and a reader who
    has not run the cell see. UUIDs are renumbered in order of appearance, addresses become 0x0.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = nbformat.from_dict(LANGUAGE)
    uuids: dict[str, str] = {}

    def settle(text: str) -> str:
        text = re.sub(UUID, lambda m: uuids.setdefault(m[0], f"{_ZERO_UUID}{len(uuids):012x}"), text)
        return re.sub(ADDRESS, "at 0x0", text)

    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if output.output_type == "error":
                output["evalue"] = settle(output["evalue"])
                output["traceback"] = [f"{output['ename']}: {output['evalue']}"]
            elif output.output_type == "stream":
                output["text"] = settle(output["text"])
            else:
                output["metadata"] = {}
                output.data.pop(WIDGET_VIEW, None)
                output.data.update({m: settle(v) for m, v in output.data.items() if isinstance(v, str)})


def comparable(notebook: NotebookNode) -> str:
    """The text by which two builds of a lesson are compared: clocks masked, ignored outputs left out."""
    plain = copy.deepcopy(notebook)
    plain.metadata.pop("kvlab", None)
    for cell in plain.cells:
        cell.metadata.pop("kvlab", None)
        if cell.cell_type == "code":
            cell["outputs"] = [] if _ignored(cell) else [_masked(output) for output in cell.outputs]
    return dumps(plain)


def dumps(notebook: NotebookNode) -> str:
    """The bytes of a notebook as Jupyter itself would save them: sorted keys, one line of text a line.

    Raises `nbformat.ValidationError` if the notebook is not valid.
    """
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook, version=nbformat.NO_CONVERT)).rstrip() + "\n"


def _ignored(cell: NotebookNode) -> bool:
    return IGNORED_OUTPUT in cell.metadata.get("tags", [])


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(MEASURED, "measured: TIME", value)
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, dict):
        return nbformat.from_dict({key: _masked(item) for key, item in value.items()})
    return value
