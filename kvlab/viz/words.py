"""Words that a user or a model wrote, as they can stand in a picture and in a table cell."""

from __future__ import annotations

import re

_NEW_LINE = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")


def shown(written: str, most: int) -> str:
    """At most `most` characters: a new line is ↵, a tab ⇥, whatever cannot be printed ·, and a cut ends with …"""
    line = _NEW_LINE.sub("↵", written).replace("\t", "⇥")
    line = "".join(each if each.isprintable() else "·" for each in line)
    return line if len(line) <= most else line[: max(0, most - 1)] + "…"
