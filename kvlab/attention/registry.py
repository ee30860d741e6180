"""The routes by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec

from kvlab.attention.blockwise import Blockwise
from kvlab.attention.contiguous import Contiguous
from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather
from kvlab.attention.reference import Reference
from kvlab.attention.step import Route
from kvlab.errors import InvalidInput

WITHOUT_NUMBA = "the route native needs Numba (pip install 'kvlab[native]')"


def routes() -> dict[str, Route]:
    """A new instance of every route, by name, plainest first; each keeps its own workspace."""
    made: list[Route] = [Reference(), Contiguous(), Gather(), Blockwise(), FlatPA("exact"), FlatPA("stock")]
    native = _native()
    if native is not None:
        made.append(native)
    return {route.name: route for route in made}


def fastest(announce: Callable[[str], None], head_dims: Iterable[int] = ()) -> Route:
    """`native` where Numba is installed and all heads of the model are of a size it takes; else `gather`, and
    `announce` is told so."""
    native = _native(announce)
    if native is None:
        announce(f"{WITHOUT_NUMBA}; gather takes its place")
        return Gather()
    multiple = native.takes.head_dim_multiple
    if odd := [each for each in head_dims if each % multiple]:
        announce(f"native needs a head_dim that is a multiple of {multiple}, not {odd[0]}; gather takes its place")
        return Gather()
    return native


def _native(announce: Callable[[str], None] | None = None) -> Route | None:
    if find_spec("numba") is None:
        return None
    from kvlab.attention.native import Native

    return Native(announce)


def get_route(name: str) -> Route:
    """A new instance of the route called `name`. Raises `InvalidInput` that names the known ones."""
    found = routes()
    if name == "native" and name not in found:
        raise InvalidInput(f"{WITHOUT_NUMBA}; or use gather")
    if name not in found:
        raise InvalidInput(f"no route is called {name!r}; there are {', '.join(found)}")
    return found[name]
