"""Exercises are written once, as their solution; the starter is made from it.

    def slot(table, position, block_size):
        # solution
        block = table[position // block_size]
        return block * block_size + position % block_size
        # end solution

becomes, in the starter,

    def slot(table, position, block_size):
        ...  # your code here (about 2 lines)

A starter cell must run without an error. Where `...` would not do (a name that later cells use, an answer
to a quiz), say what stands there instead, directly below the opening marker:

    # solution
    # starter: bytes_per_token = None
    bytes_per_token = 2 * layers * kv_heads * head_dim * dtype_bytes
    # end solution
"""

from typing import Literal

from kvlab.errors import InvalidInput

Variant = Literal["starter", "solution"]

OPEN, CLOSE, STARTER = "# solution", "# end solution", "# starter:"
YOUR_CODE = "# your code here"


def source_for(variant: Variant, source: str) -> str:
    """The text of a code cell in one of the two notebooks; the markers are in neither.

    Raises `InvalidInput` for a region that is empty, nested or not closed, and for a starter line elsewhere.
    """
    kept: list[str] = []
    region: list[str] | None = None
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text == OPEN:
            if region is not None:
                raise InvalidInput(f"line {number}: {OPEN!r} inside a solution that is not closed")
            region = [line]
        elif text == CLOSE:
            if region is None:
                raise InvalidInput(f"line {number}: {CLOSE!r} without {OPEN!r}")
            kept += _replace(variant, region, number)
            region = None
        elif region is not None:
            region.append(line)
        elif text.startswith(STARTER):
            raise InvalidInput(f"line {number}: {STARTER!r} belongs directly below {OPEN!r}")
        else:
            kept.append(line)
    if region is not None:
        raise InvalidInput(f"{OPEN!r} is never closed with {CLOSE!r}")
    return "\n".join(kept)


def _replace(variant: Variant, region: list[str], number: int) -> list[str]:
    indent = region[0][: len(region[0]) - len(region[0].lstrip())]
    body = region[1:]
    starter: list[str] = []
    while body and body[0].strip().startswith(STARTER):
        starter.append(body.pop(0).strip()[len(STARTER) :].removeprefix(" "))
    if any(line.strip().startswith(STARTER) for line in body):
        raise InvalidInput(f"line {number}: {STARTER!r} belongs directly below {OPEN!r}")
    lines = [line for line in body if line.strip() and not line.strip().startswith("#")]
    if not lines:
        raise InvalidInput(f"line {number}: the solution is empty")
    if variant == "solution":
        return body
    about = f"{YOUR_CODE} (about {len(lines)} line{'s' if len(lines) > 1 else ''})"
    if not starter:
        return [f"{indent}...  {about}" if indent else about]
    if "#" not in starter[-1]:
        starter[-1] += f"  {about}"
    return [f"{indent}{line}".rstrip() for line in starter]
