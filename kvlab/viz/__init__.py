"""Pictures: scenes (state -> SVG and table), the player that steps a log, and charts.

A *scene* draws one moment: a pure function of a replayed `kvlab.events.State` (and the frame's events) to a `Drawing`.
    pages(state, events=(), *, pool="full", width=760)          tables left, pool right, arrows between: lesson 02
    pool_grid(state, events=(), *, pool="full", width=720)      the blocks: owner, fill, sharing, copies
    block_tables(state, events=(), *, pool="full")              logical -> physical, filled slots
    sharing(state, events=(), *, pool="full")                   tables as threads that run together and split: lesson 03
    reservation_bars(state, events=(), *, pool="full")          one bar a contiguous request, wastes hatched: lesson 01
    region_strip(state, events=(), *, pool="full", pending=None)   the whole pool as a strip; does `pending` fit?

These draw lists or whole logs instead:
    recompute_triangle(without_cache, with_cache, *, steps=None) -> Drawing      tokens computed a step: lesson 00
    triangle_frames(without_cache, with_cache) -> [(Drawing, caption)]           the same, growing
    computed_tokens(prompt, steps) -> (without_cache, with_cache)                the two lists, counted by hand
    accumulator([Taken(...), ...], blocks, block_size) -> Drawing                the online softmax: lesson 04
    accumulator_frames(taken, blocks, block_size) -> [(Drawing, caption)]        the same, a block a frame
    slot_reads(state, reads, wanted, *, pool="full") -> Drawing                  what a kernel touched in the pool
    timeline(log, *, frame=None, places=False) -> Drawing                        who ran, waited, was stopped: lesson 05
    timeline_frames(log, *, places=False) -> [(Drawing, caption)]                the same, a step a frame
    hash_chain({rid: [Link(digest, label, status), ...]}, *, salts=None) -> Drawing      digests that agree: lesson 06
    prefix_chains(state, events=(), *, pool="full", labels=None) -> {rid: [Link, ...]}   a state's chains, to draw
    beam_tree([[BeamNode(beam, parent, label, score, alive), ...], ...], state=None, events=()) -> Drawing
                                                                                 beams, over their blocks: lesson 03
    layer_strips([LayerKV(...), ...], *, scale_tokens=None, block_tokens=None) -> Drawing    a strip a layer: lesson 07
    request_layers(state, events=(), *, rid, groups, scale_tokens=None) -> Drawing       the same from a log
    layers_of(groups, tokens, held=None) -> [LayerKV, ...]; layers_in(state, rid, groups) -> [LayerKV, ...]
    gather_path([RouteBytes(name, source, useful, padded, physical), ...], *, decimal=False) -> Drawing    lesson 08
    gather_steps(table, pool_blocks, *, step) -> Drawing    three routes, a block a step; gather_frames: every step
    ring_clock(RingSlots(keys, values, tokens, pointer, overwritten)) -> Drawing        a ring that wraps: lesson 09
    ring_frames([RingSlots, ...]) -> [(Drawing, caption)]; ring_clocks([(words, RingSlots), ...]) -> Drawing
    ring_after(window, tokens) -> RingSlots                                              what a right ring holds
    arena_grid(state, events=(), *, ring="ring", page="page") -> Drawing                 rings and pages, one arena
    arena_picture(ArenaRows) -> Drawing; arena_in(state) -> ArenaRows; ArenaRows((Superblock(ring, pages), ...), ...)

Of a radix tree over two pools (lessons 10 to 12; the frames also show each chunk in flight, before its commit):
    radix_tree(state, events=(), *, window_tokens=None, scale_tokens=None, words=None, flight=None)
                                                        spans live, dead, unlocked, tombstoned; who locks; both pools
    conservation(state, events=(), *, window_tokens=None, flight=None)      the two pools alone, as an identity
    token_strip({label: state}, rid, *, window_tokens, ...) -> Drawing      one request's SWA KV, a row a policy
    tree_frames(log, *, window_tokens=None, scale_tokens=None) -> [(Drawing, caption)]
    strip_frames({label: log}, rid, *, window_tokens) -> [(Drawing, caption)]    the same steps side by side
    hold({label: [Hold(step, running, dead, live), ...]}, *, each=False, need_tokens=None, title=None) -> Drawing
    holds_of(log, window_tokens) -> [Hold, ...]                             what running requests hold, step by step
    serves([Serve(label, tokens, logits), ...], *, title=None) -> Drawing   equal bits or flips, aligned by token

To show them (the value of a cell's last line):
    player(log, *scenes, start=0, title=None, columns=1) -> Player      every frame; several scenes together
    Player.from_drawings([(drawing, caption), ...], *, title=None, start=0) -> Player
    Picture(drawing, caption="")                                        one still picture

    player(log, pages)                                  player(log, partial(region_strip, pending=1024), start=-1)
    Picture(pages(Replay(log).state(3)))                p = player(log, pages); p.step = 3; p.hovered; p.captions[3]

Charts (each also as a still SVG and a table):
    stacked_shares([(system, {"tokens": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9}), ...], *, title,
                   axis="share of all slots (%)") -> Chart
    bars([(category, {series: value}), ...], *, title, axis, log=False) -> Chart
    lines({series: [(x, y), ...]}, *, title, x, y, log_x=False, log_y=False) -> Chart
    Chart(figure, table, *, title) -> Chart             a plotly figure of your own with its table

Names are imported on first use, so `import kvlab.viz` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.viz.charts import Chart, bars, lines, stacked_shares
    from kvlab.viz.drawing import Drawing, Picture
    from kvlab.viz.player_widget import Player, Scene, player
    from kvlab.viz.scenes.arena import arena_grid, arena_picture
    from kvlab.viz.scenes.arena_rows import ArenaRows, Superblock, arena_in
    from kvlab.viz.scenes.beam_nodes import BeamNode
    from kvlab.viz.scenes.beam_tree import beam_tree
    from kvlab.viz.scenes.block_tables import block_tables
    from kvlab.viz.scenes.conservation import conservation
    from kvlab.viz.scenes.fragmentation import region_strip, reservation_bars
    from kvlab.viz.scenes.gather_path import RouteBytes, gather_path
    from kvlab.viz.scenes.gather_steps import gather_frames, gather_steps
    from kvlab.viz.scenes.hash_chain import hash_chain
    from kvlab.viz.scenes.hash_links import Link, prefix_chains
    from kvlab.viz.scenes.hold import Hold, hold, holds_of
    from kvlab.viz.scenes.layer_kv import LayerKV, layers_in, layers_of
    from kvlab.viz.scenes.layer_strips import layer_strips, request_layers
    from kvlab.viz.scenes.online_softmax import accumulator, accumulator_frames
    from kvlab.viz.scenes.pages import pages
    from kvlab.viz.scenes.pool_grid import pool_grid
    from kvlab.viz.scenes.radix_tree import radix_tree
    from kvlab.viz.scenes.radix_tree_frames import strip_frames, tree_frames
    from kvlab.viz.scenes.recompute import computed_tokens, recompute_triangle, triangle_frames
    from kvlab.viz.scenes.ring import ring_clock, ring_clocks, ring_frames
    from kvlab.viz.scenes.ring_slots import RingSlots, ring_after
    from kvlab.viz.scenes.serves import Serve, serves
    from kvlab.viz.scenes.sharing import sharing
    from kvlab.viz.scenes.slot_reads import slot_reads
    from kvlab.viz.scenes.taken import Taken
    from kvlab.viz.scenes.timeline import timeline, timeline_frames
    from kvlab.viz.scenes.token_strip import token_strip

_HOME = {
    "charts": ("Chart", "bars", "lines", "stacked_shares"),
    "drawing": ("Drawing", "Picture"),
    "player_widget": ("Player", "Scene", "player"),
    "scenes.arena": ("arena_grid", "arena_picture"),
    "scenes.arena_rows": ("ArenaRows", "Superblock", "arena_in"),
    "scenes.gather_path": ("RouteBytes", "gather_path"),
    "scenes.gather_steps": ("gather_frames", "gather_steps"),
    "scenes.layer_kv": ("LayerKV", "layers_in", "layers_of"),
    "scenes.layer_strips": ("layer_strips", "request_layers"),
    "scenes.ring": ("ring_clock", "ring_clocks", "ring_frames"),
    "scenes.ring_slots": ("RingSlots", "ring_after"),
    "scenes.beam_nodes": ("BeamNode",),
    "scenes.beam_tree": ("beam_tree",),
    "scenes.block_tables": ("block_tables",),
    "scenes.conservation": ("conservation",),
    "scenes.fragmentation": ("region_strip", "reservation_bars"),
    "scenes.hash_chain": ("hash_chain",),
    "scenes.hash_links": ("Link", "prefix_chains"),
    "scenes.hold": ("Hold", "hold", "holds_of"),
    "scenes.online_softmax": ("accumulator", "accumulator_frames"),
    "scenes.pages": ("pages",),
    "scenes.pool_grid": ("pool_grid",),
    "scenes.radix_tree": ("radix_tree",),
    "scenes.radix_tree_frames": ("strip_frames", "tree_frames"),
    "scenes.recompute": ("computed_tokens", "recompute_triangle", "triangle_frames"),
    "scenes.serves": ("Serve", "serves"),
    "scenes.sharing": ("sharing",),
    "scenes.slot_reads": ("slot_reads",),
    "scenes.taken": ("Taken",),
    "scenes.timeline": ("timeline", "timeline_frames"),
    "scenes.token_strip": ("token_strip",),
}
_MODULE = {each: module for module, names in _HOME.items() for each in names}

__all__ = [
    "ArenaRows",
    "BeamNode",
    "Chart",
    "Drawing",
    "Hold",
    "LayerKV",
    "Link",
    "Picture",
    "Player",
    "RingSlots",
    "RouteBytes",
    "Scene",
    "Serve",
    "Superblock",
    "Taken",
    "accumulator",
    "accumulator_frames",
    "arena_grid",
    "arena_in",
    "arena_picture",
    "bars",
    "beam_tree",
    "block_tables",
    "computed_tokens",
    "conservation",
    "gather_frames",
    "gather_path",
    "gather_steps",
    "hash_chain",
    "hold",
    "holds_of",
    "layer_strips",
    "layers_in",
    "layers_of",
    "lines",
    "pages",
    "player",
    "pool_grid",
    "prefix_chains",
    "radix_tree",
    "recompute_triangle",
    "region_strip",
    "request_layers",
    "reservation_bars",
    "ring_after",
    "ring_clock",
    "ring_clocks",
    "ring_frames",
    "serves",
    "sharing",
    "slot_reads",
    "stacked_shares",
    "strip_frames",
    "timeline",
    "timeline_frames",
    "token_strip",
    "tree_frames",
    "triangle_frames",
]


def __getattr__(wanted: str) -> Any:
    if wanted not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {wanted!r}")
    found = getattr(import_module(f"{__name__}.{_MODULE[wanted]}"), wanted)
    globals()[wanted] = found
    return found
