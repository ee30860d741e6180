"""The box in which checks, quizzes and measurements show themselves, in light and dark themes, no script.

Colours come from JupyterLab's theme with fallbacks, inline because trusted and untrusted notebooks both keep
inline styles. Where styles are dropped (GitHub), the order of the elements still reads well; a screen reader
gets a labelled section. Meaning is in words, colour only underlines it.
"""

from html import escape

GOOD, OPEN, PLAIN = "#009E73", "#E69F00", "#0072B2"  # Okabe-Ito

_BOX = (
    "border:1px solid var(--jp-border-color1,#9e9e9e);border-left:6px solid {colour};border-radius:3px;"
    "padding:8px 12px;margin:4px 0;max-width:46em;"
    "color:var(--jp-content-font-color1,inherit);background:var(--jp-layout-color1,transparent)"
)
_CODE = (
    "font-family:var(--jp-code-font-family,monospace);font-size:0.95em;white-space:pre-wrap;"
    "color:var(--jp-content-font-color1,inherit);background:var(--jp-layout-color2,transparent);padding:0 3px"
)


def card(label: str, colour: str, *parts: str) -> str:
    """A labelled section around HTML `parts`; `colour` marks its left edge."""
    return (
        f'<section aria-label="{escape(label)}" style="{_BOX.format(colour=colour)}">\n'
        + "\n".join(parts)
        + "\n</section>"
    )


def heading(text: str) -> str:
    """The first line of a card; `code` in backticks is set as code."""
    return f'<p style="margin:0 0 6px 0"><strong>{inline(text)}</strong></p>'


def paragraph(text: str) -> str:
    """A line of prose; `code` in backticks is set as code."""
    return f'<p style="margin:4px 0">{inline(text)}</p>'


def terms(rows: list[tuple[str, str]], *, code: frozenset[str] = frozenset()) -> str:
    """Name and text, one row each; the rows named in `code` show program text as it is."""
    body = "\n".join(
        f'<tr><th scope="row" style="text-align:left;vertical-align:top;font-weight:600">{escape(name)}</th>'
        f'<td style="text-align:left">{code_text(text) if name in code else inline(text)}</td></tr>'
        for name, text in rows
    )
    return f'<table style="margin:0;border:none">\n{body}\n</table>'


def code_text(text: str) -> str:
    """Program text, escaped, line breaks kept."""
    return f'<code style="{_CODE}">{escape(text)}</code>'


def inline(text: str) -> str:
    """Escaped prose in which `this` is code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(code_text(piece) if i % 2 else escape(piece) for i, piece in enumerate(pieces))
