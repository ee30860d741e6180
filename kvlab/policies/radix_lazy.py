"""The radix cache as engines had it: what a prompt chunk inserts is locked whole, dead SWA KV and all."""

from __future__ import annotations

from kvlab.policies.radix_base import RadixPolicy


class RadixLazy(RadixPolicy):
    """Sliding-window KV is freed late: under memory pressure, or behind a request's window in what it generated itself.

    The SWA KV of a committed prompt chunk belongs to the tree, and the lock of the running request keeps it: whole
    nodes, upward, until the window is covered. That is about one chunk a request of which no more than a window can be
    read; `usage()` shows the rest as `dead`. Generated text is found by others only when its request has finished (or
    was forked).

    On a shape without sliding layers it is the plain radix cache.
    """
