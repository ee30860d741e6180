"""A stand-in for `torch.hpu` and `habana_frameworks` that holds its callers to the vendor's published signatures.

TABLE is what the public bridge sources define, for all that kvlab might want. A name outside it, a wrong argument, a
keyword where the vendor takes positions, or a call out of order raises `ContractViolation`. Nothing here computes on a
Gaudi: tensors are fake ones, or stay on the CPU.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from kvlab.device.bandwidth import measured

TABLE = {
    "torch.hpu.is_available": "()",
    "torch.hpu.device_count": "()",
    "torch.hpu.current_device": "()",
    "torch.hpu.get_device_name": "(device=None)",
    "torch.hpu.synchronize": "()",
    "torch.hpu.set_device": "(device)",
    "torch.hpu.memory_allocated": "(device=None)",
    "torch.hpu.max_memory_allocated": "(device=None)",
    "torch.hpu.memory_stats": "(device=None)",
    "torch.hpu.reset_peak_memory_stats": "(device=None)",
    "torch.hpu.mem_get_info": "(device=None)",
    "torch.hpu.Event": "(enable_timing=False)",
    "torch.hpu.Event.record": "(stream=None)",
    "torch.hpu.Event.wait": "(stream=None)",
    "torch.hpu.Event.query": "()",
    "torch.hpu.Event.synchronize": "()",
    "torch.hpu.Event.elapsed_time": "(end_event)",
    "torch.hpu.Stream": "(device=None, priority=0)",
    "torch.hpu.stream": "(stream)",
    "torch.hpu.current_stream": "(device=None)",
    "torch.hpu.default_stream": "(device=None)",
    "habana_frameworks.torch.core.mark_step": "(device_str='', sync=False)",
    "habana_frameworks.torch.utils.internal.is_lazy": "()",
    "habana_frameworks.torch.hpu.metrics.metric_global": "(name)",
    "habana_frameworks.torch.hpu.metrics.metric_global.stats": "()",
}
LAZY_ONLY = {
    "torch.hpu.wrap_in_hpu_graph": (
        "(module, asynchronous=False, disable_tensor_cache=False, dry_run=False, max_graphs=None)"
    ),
    "torch.hpu.HPUGraph": "()",
    "torch.hpu.HPUGraph.capture_begin": "(dry_run=False)",
    "torch.hpu.HPUGraph.capture_end": "()",
    "torch.hpu.HPUGraph.replay": "(asynchronous=False)",
}
FUSED_SDPA = (
    "(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode='None', recompute_mode=None, "
    "valid_seq_len=None, seq_padding_type='left')"
)
ASKED_BY_TORCH = {"is_initialized": lambda: True}  # by fake tensors; kvlab has no business with it
MODULES = (
    "habana_frameworks",
    "habana_frameworks.torch",
    "habana_frameworks.torch.core",
    "habana_frameworks.torch.utils",
    "habana_frameworks.torch.utils.internal",
    "habana_frameworks.torch.hpu",
    "habana_frameworks.torch.hpu.metrics",
    "habana_frameworks.torch.hpex",
    "habana_frameworks.torch.hpex.kernels",
)
METRICS = ("graph_compilation", "cpu_fallback", "memory_defragmentation")


class ContractViolation(AssertionError):
    """The program used something that the vendor's sources do not define, or used it wrongly."""


def require(held: bool, rule: str) -> None:
    """Raise `ContractViolation` unless `held`."""
    if not held:
        raise ContractViolation(rule)


def asked_by_kvlab() -> bool:
    """Whether the code that looks an attribute up is kvlab's or a test's, and not torch's own probing."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return not caller.startswith(("torch.", "importlib", "_frozen_importlib"))


@dataclass
class Call:
    """One call that was made: the name in the table and its arguments by parameter."""

    path: str
    arguments: dict[str, Any]


@dataclass
class Gaudi:
    """The card behind the stand-in: its mode, what it holds, and the calls that were made."""

    lazy: bool = False
    available: bool = True
    broken: Exception | None = None
    free_bytes: int = 108_000_000_000
    fallbacks: int = 0
    calls: list[Call] = field(default_factory=list)
    compiled: int = 0

    @property
    def table(self) -> dict[str, str]:
        return TABLE | (LAZY_ONLY if self.lazy else {})

    def paths(self) -> list[str]:
        return [call.path for call in self.calls]

    def call(self, path: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], noted: bool) -> Any:
        """Hold a call to its signature, note it where kvlab makes it, and answer."""
        try:
            bound = signature(self.table[path]).bind(*args, **kwargs)
        except TypeError as error:
            raise ContractViolation(f"{path}{self.table[path]}: {error}") from error
        bound.apply_defaults()
        if noted:
            self.calls.append(Call(path, bound.arguments))
        answer = ANSWERS.get(path)
        require(answer is not None, f"{path} is in the table, but the stand-in has no answer for it")
        return answer(self, owner, **bound.arguments)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put the stand-in where the bridge would be, until `patch` is undone."""
        for name in MODULES:
            module = StrictModule(name, self)
            module.__path__ = []
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="stand-in")
            patch.setitem(sys.modules, name, module)
        patch.setattr(torch, "hpu", StrictModule("torch.hpu", self), raising=False)
        patch.setitem(registry._BACKENDS, "hpu_backend", None)
        patch.setitem(registry._COMPILER_FNS, "hpu_backend", self.backend)
        measured.cache_clear()

    def backend(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        """`hpu_backend`: counts graphs and runs them as they are."""
        require(not self.lazy, "hpu_backend compiles in eager mode only")
        self.compiled += 1
        return graph.forward


class Strict:
    """Something of the bridge: an attribute is what the table says about its path, or a violation."""

    def __init__(self, path: str, gaudi: Gaudi, **state: Any) -> None:
        self._path, self._gaudi, self._state = path, gaudi, state

    def __getattr__(self, name: str) -> Any:
        return reach(self, self._gaudi, self._path, name, asked_by_kvlab())


class StrictModule(types.ModuleType):
    """A module of the bridge, as strict."""

    def __init__(self, name: str, gaudi: Gaudi) -> None:
        super().__init__(name)
        self._gaudi = gaudi

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return reach(self, self._gaudi, self.__name__, name, asked_by_kvlab())


def reach(owner: Any, gaudi: Gaudi, path: str, name: str, kvlab_asks: bool) -> Any:
    """What `path.name` is: a function of the table, the fused operator, or nothing."""
    full = f"{path}.{name}"
    if full == "habana_frameworks.torch.hpex.kernels.FusedSDPA":
        return FusedSDPA
    if gaudi.broken is not None and full.endswith("is_lazy"):
        raise gaudi.broken
    if full in gaudi.table:
        return lambda *args, **kwargs: gaudi.call(full, owner, args, kwargs, kvlab_asks)
    if kvlab_asks:
        raise ContractViolation(f"{full} is not in the table of what the vendor's sources define")
    if path == "torch.hpu" and name in ASKED_BY_TORCH:
        return ASKED_BY_TORCH[name]
    raise AttributeError(full)


def signature(text: str) -> inspect.Signature:
    """The signature that a text such as `(device=None)` describes."""
    space: dict[str, Any] = {}
    exec(f"def call{text}: ...", space)
    return inspect.signature(space["call"])


class FusedSDPA(torch.autograd.Function):
    """The vendor's operator, `[B, H, S, D]`; `apply` takes positions only."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        require(not kwargs, f"FusedSDPA.apply takes positions, not {', '.join(kwargs)}=")
        return super().apply(*args)

    @staticmethod
    def forward(
        ctx: Any, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="None",
        recompute_mode=None, valid_seq_len=None, seq_padding_type="left",
    ):  # fmt: skip
        require(q.dim() == k.dim() == v.dim() == 4, "FusedSDPA takes [B, H, S, D]")
        require(q.dtype == k.dtype == v.dtype, "FusedSDPA takes one dtype")
        require(k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3], "shapes differ")
        require(q.shape[1] % k.shape[1] == 0, "query heads do not divide among the KV heads")
        require(valid_seq_len is None or (is_causal and attn_mask is None), "valid_seq_len wants causal and no mask")
        if attn_mask is not None:
            require(attn_mask.dim() == 4 and attn_mask.shape[1] in (1, q.shape[1]), "mask is [B, 1 or heads, S, T]")
            require(attn_mask.dtype == q.dtype, "a mask is added to the logits, in the queries' dtype")
        require(not dropout_p, "attention that serves drops nothing out")
        require(attn_mask is None or not is_causal, "a mask beside is_causal is not supported")
        if is_causal:
            attn_mask = torch.full((q.shape[2], k.shape[2]), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
        logits = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
        return torch.softmax(logits if attn_mask is None else logits + attn_mask, -1) @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ContractViolation("kvlab asks for no gradient")


def _record(gaudi: Gaudi, event: Strict, stream: Any) -> None:
    flushed = gaudi.paths()[-3:-1] == ["habana_frameworks.torch.core.mark_step", "torch.hpu.Event"]
    require(flushed or not gaudi.lazy, "lazy mode still collects work: mark_step comes before an event")
    event._state["recorded"] = len(gaudi.calls)


def _elapsed(gaudi: Gaudi, start: Strict, end_event: Strict) -> float:
    require(start._state["timing"] and end_event._state["timing"], "both events need enable_timing")
    require(start._state["recorded"] < end_event._state["recorded"], "the end is before the start")
    require(end_event._state.get("waited", False), "nobody waited for the end event")
    return 2.5


ANSWERS: dict[str, Any] = {
    "torch.hpu.is_available": lambda gaudi, owner: gaudi.available,
    "torch.hpu.device_count": lambda gaudi, owner: 1,
    "torch.hpu.current_device": lambda gaudi, owner: 0,
    "torch.hpu.get_device_name": lambda gaudi, owner, device: "GAUDI3",
    "torch.hpu.synchronize": lambda gaudi, owner: None,
    "torch.hpu.memory_allocated": lambda gaudi, owner, device: 20_000_000_000,
    "torch.hpu.max_memory_allocated": lambda gaudi, owner, device: 30_000_000_000,
    "torch.hpu.mem_get_info": lambda gaudi, owner, device: (gaudi.free_bytes, 128_000_000_000),
    "torch.hpu.Event": lambda gaudi, owner, enable_timing: Strict("torch.hpu.Event", gaudi, timing=enable_timing),
    "torch.hpu.Event.record": _record,
    "torch.hpu.Event.synchronize": lambda gaudi, event: event._state.update(waited=True),
    "torch.hpu.Event.elapsed_time": _elapsed,
    "habana_frameworks.torch.core.mark_step": lambda gaudi, owner, device_str, sync: None,
    "habana_frameworks.torch.utils.internal.is_lazy": lambda gaudi, owner: gaudi.lazy,
    "habana_frameworks.torch.hpu.metrics.metric_global": lambda gaudi, owner, name: (
        require(name in METRICS, f"no metric is called {name}"),
        Strict("habana_frameworks.torch.hpu.metrics.metric_global", gaudi, metric=name),
    )[1],
    "habana_frameworks.torch.hpu.metrics.metric_global.stats": lambda gaudi, metric: [
        ("TotalNumber", {"graph_compilation": gaudi.compiled, "cpu_fallback": gaudi.fallbacks}[metric._state["metric"]])
    ],
}
