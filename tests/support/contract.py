"""The contract of `kvlab.policies.base.Policy`: what its clauses are made of.

A clause takes a case. Every policy must keep all clauses; they are in `contract_refusals` and `contract_memory`.
"""

from collections.abc import Callable
from types import ModuleType

from kvlab.policies.layout import Layout
from kvlab.workload import Request, RequestId
from support.cases import PolicyCase
from support.contents import slot_at
from support.serving import Serving

Clause = Callable[[PolicyCase], None]


def clauses_of(module: ModuleType) -> list[Clause]:
    """The functions that a module of clauses defines, in its order."""
    return [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]


def serving(case: PolicyCase, *prompts: int, output: int = 10) -> Serving:
    """A policy with requests "r0", "r1", ... whose prompts are computed."""
    server = Serving(case)
    for index, prompt in enumerate(prompts):
        come(server, f"r{index}", prompt, output)
    server.check()
    return server


def come(server: Serving, rid: RequestId, prompt: int, output: int = 10) -> None:
    """Admit and prefill."""
    admission = server.admit(Request(rid, prompt, output, output_tokens=output))
    assert admission is not None
    assert server.extend(rid, prompt - admission.cached_tokens)
    server.commit(rid, prompt - admission.cached_tokens)


def fill(server: Serving, prompt: int = 6, name: str = "f") -> list[RequestId]:
    """Admit and prefill until nothing more comes in."""
    for index in range(200):
        request = Request(f"{name}{index}", prompt, 10, output_tokens=10)
        if server.admit(request) is None:
            server.check(pending_tokens=prompt)
            return list(server.admitted)
        assert server.extend(request.rid, prompt)
        server.commit(request.rid, prompt)
    raise AssertionError("the pool never filled up")


def slots_of(server: Serving, rid: RequestId) -> list[list[int]]:
    """Slots of every live position, by group."""

    def slots(layout: Layout) -> list[int]:
        return [slot_at(layout, position) for position in range(layout.start, layout.end)]

    return [slots(layout) for layout in server.policy.layout(rid)]
