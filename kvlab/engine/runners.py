"""Which runner serves a model: by the device that its weights lie on."""

from __future__ import annotations

from collections.abc import Callable

from kvlab.attention.gather import Gather
from kvlab.attention.registry import fastest
from kvlab.attention.step import Route
from kvlab.device.base import Device
from kvlab.engine.decoder import Decoder
from kvlab.engine.kv import KVCache
from kvlab.engine.runner import Runner
from kvlab.engine.static_runner import StaticRunner
from kvlab.engine.static_shapes import Rounding, Shapes
from kvlab.errors import InvalidInput
from kvlab.scheduling.scheduler import Scheduler


def cache_and_runner(
    decoder: Decoder,
    scheduler: Scheduler,
    device: Device,
    *,
    route: Route | None,
    rounding: Rounding | None,
    drafts: int,
    announce: Callable[[str], None],
) -> tuple[KVCache, Runner | StaticRunner]:
    """The KV of a model and what runs its steps: in shapes as they come, or in static ones with a `rounding`, which a
    Gaudi always has. There the runner is warmed up, and `announce` told before.

    Without a route: the fastest that this CPU has, or `Gather` on another device. Raises `InvalidInput` where the model
    is not on the device, and on a route where shapes are static.
    """
    if decoder.device != device.torch_device:
        raise InvalidInput(
            f"the model lies on {decoder.device}, the device is {device.torch_device}; load the model there"
        )
    if rounding is None and device.name == "hpu":
        rounding = Rounding()
    policy = scheduler.policy
    if rounding is None:
        if route is None:
            heads = {decoder.config.head_dim(layer) for layer in range(decoder.config.layers)}
            route = fastest(announce, heads) if device.name == "cpu" else Gather(fused=device.sdpa)
        cache = KVCache(decoder.config, policy, device=decoder.device)
        return cache, Runner(decoder, cache, route)
    if route is not None:
        raise InvalidInput(
            f"steps of static shapes (here on {device.name}) attend in their own graph, not by the route "
            f"{route.name}; leave route out"
        )
    pools = policy.pools()
    if any(pool.overlay for pool in pools.values()):
        raise InvalidInput(
            f"steps of static shapes (here on {device.name}) do not read pools that lie over the same memory, as "
            f"{type(policy).__name__}'s do; use Paged, or steps without a rounding"
        )
    copies = rounding.copies(max(pool.slots for pool in pools.values()))
    cache = KVCache(decoder.config, policy, device=decoder.device, copies=copies)
    whole = [pools[group.pool].slots for group in policy.groups if group.window_tokens is None]
    shapes = Shapes.of(
        rounding,
        max_running=scheduler.max_running,
        token_budget=scheduler.token_budget,
        context_tokens=min([decoder.config.max_positions, *whole]),
        drafts=drafts,
    )
    runner = StaticRunner(decoder, cache, device, shapes)
    if device.name == "hpu":
        announce(f"warming up {runner.graphs} graphs, so that none has to be made while requests wait")
        runner.warm()
    return cache, runner
