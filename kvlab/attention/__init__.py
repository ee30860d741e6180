"""The routes: ways to read the same KV store, from a dense float64 reference to a native kernel.

store = KVStore(slots, block_size, kv_heads, head_dim, dtype=torch.bfloat16)
store.copy(policy.drain_moves())                    # copy-on-write, before the writes of the step
store.write(keys, values, extension.slots()[0])
output, read = get_route("gather")(Step(queries, keys, values, starts, lengths, layouts, scale), store)
"""

from kvlab.attention.checking import accept, check
from kvlab.attention.registry import get_route, routes
from kvlab.attention.step import Bytes, Route, Step, Takes, Trace
from kvlab.attention.store import FP8, KVStore

__all__ = ["FP8", "Bytes", "KVStore", "Route", "Step", "Takes", "Trace", "accept", "check", "get_route", "routes"]
