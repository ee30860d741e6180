"""A scheduler, its plainest model and the content of its memory, which must agree after each operation.

The model of a request is how many tokens it knows and how it ended.
"""

from collections.abc import Iterable
from itertools import count as numbers

from kvlab.events import EventLog, State, apply
from kvlab.policies.layout import Region, Ring, Table
from kvlab.scheduling.plan import Decision, Grant, Plan
from kvlab.scheduling.scheduler import Scheduler
from kvlab.scheduling.sequence import Status
from kvlab.workload import Request, RequestId
from support.books import Books, Owner
from support.contents import Contents, slot_at
from support.scheduler_cases import SchedulerCase

TOO_LONG = 400


class Known:
    """The model: known tokens (by identity: each stands for all tokens up to it), and how the request ended."""

    def __init__(self, request: Request, tokens: Iterable[int] = (), computed: int = 0) -> None:
        self.request = request
        self.tokens = list(tokens)
        self.computed = computed
        self.held = False
        self.end = ""


class Modelled:
    """A scheduler in use."""

    def __init__(self, case: SchedulerCase) -> None:
        self.case = case
        self.log = EventLog()
        self.policy = case.policy.build(self.log)
        options = {"token_budget": 16, "max_running": 5} | case.options
        self.budget, self.places = options["token_budget"], options["max_running"]
        self.scheduler = Scheduler(self.policy, log=self.log, **options)
        self.contents = Contents()
        self.known: dict[RequestId, Known] = {}
        self.orders: dict[RequestId, tuple[int, ...]] = {}
        self.state = State()
        self._replayed = 0
        self._ids, self._names, self._arrivals = numbers(100), numbers(), numbers()
        self._chain: dict[tuple[int, int], int] = {}

    @property
    def live(self) -> list[Known]:
        """Those that have not ended."""
        return [known for known in self.known.values() if not known.end]

    def ids(self, count: int) -> list[int]:
        """Token ids that nobody has used."""
        return [next(self._ids) for _ in range(count)]

    def chain(self, after: list[int], ids: Iterable[int]) -> list[int]:
        """What the KV of `ids` is: it follows from all tokens up to there."""
        found: list[int] = []
        for each in ids:
            last = (found or after or [-1])[-1]
            found.append(self._chain.setdefault((last, each), len(self._chain)))
        return found

    def add(self, ids: list[int], max_tokens: int, output_tokens: int | None = None) -> None:
        """A request arrives."""
        request = Request(next(self._names), ids, max_tokens, output_tokens=output_tokens)
        self.known[request.rid] = Known(request, self.chain([], ids))
        self.orders[request.rid] = (next(self._arrivals),)
        self.scheduler.add(request)

    def fork(self, parent: Known, *, share: bool) -> None:
        """Fork, and see that the KV is shared wherever it can be."""
        rid, child = parent.request.rid, parent.request.fork(next(self._names))
        was_running = self.scheduler._sequence(rid).status is Status.RUNNING
        self.scheduler.fork(rid, child, share=share)
        self.known[child.rid] = Known(child, parent.tokens)
        sequence = self.scheduler._sequence(child.rid)
        self.orders[child.rid] = sequence.order
        assert sequence.order[:-1] == self.orders[rid]
        if sequence.status is Status.RUNNING:
            assert share
            assert was_running
            self.known[child.rid].computed = parent.computed
        else:
            assert not (share and was_running and isinstance(self.policy.layout(rid)[-1], Table))

    def cancel(self, rid: RequestId) -> None:
        """Leave, wherever it is."""
        self.scheduler.finish(rid, "aborted")
        self.known[rid].end = "aborted"

    def step(self, drafts: dict[RequestId, int], right: int, interrupted: int | None) -> None:
        """One step; `interrupted` after that many grants were computed."""
        queue = self.queue()
        decision = self.scheduler.decide(drafts)
        self.check_decision(decision, drafts)
        running = [each.request.rid for each in self.scheduler.running]
        plan = self.scheduler.allocate(decision)
        self.check_plan(plan, running, queue)
        self.flush()
        drafted = {grant.request.rid: self.write(grant) for grant in plan.granted}
        ended: list[Known] = []
        for grant in plan.granted if interrupted is None else plan.granted[:interrupted]:
            self.compute(grant, drafted[grant.request.rid], right, ended)
        if interrupted is None:
            self.scheduler.end_step()
        else:
            self.scheduler.abandon(plan)
        for known in ended:
            self.scheduler.finish(known.request.rid)

    def queue(self) -> list[tuple[int, ...]]:
        """The orders of those that wait and may run."""
        return [each.order for each in self.scheduler.waiting if not each.held]

    def check_decision(self, decision: Decision, drafts: dict[RequestId, int]) -> None:
        chosen = [sequence for sequence, _ in decision.running]
        everybody = [*chosen, *decision.joining]
        assert sum(tokens for _, tokens in decision.running) <= self.budget, "beyond the token budget"
        assert len(everybody) <= self.places, "more sequences than may run"
        assert len({each.request.rid for each in everybody}) == len(everybody), "somebody was chosen twice"
        assert not any(each.held for each in everybody), "a held sequence was chosen"
        assert [each.order for each in chosen] == sorted(each.order for each in chosen)
        for sequence, tokens in decision.running:
            assert 0 < tokens <= sequence.pending + drafts.get(sequence.request.rid, 0)
        if decision.running and self.scheduler.batching == "static":
            assert not decision.joining, "a static batch was joined"

    def check_plan(self, plan: Plan, running: list[RequestId], queue: list[tuple[int, ...]]) -> None:
        assert plan.tokens <= self.budget, "beyond the token budget"
        assert len(plan.granted) <= self.places, "more sequences than may run"
        rids = [grant.request.rid for grant in plan.granted]
        assert len(set(rids)) == len(rids), "somebody runs twice"
        for request, reason in plan.refused:
            assert request.max_tokens == TOO_LONG
            assert reason
            self.known[request.rid].end = "refused"
        for request, cached in plan.admitted:
            assert request.computed == cached
            self.known[request.rid].computed = cached
        if any(not known.held for known in self.live):
            assert plan.granted or plan.refused, "sequences wait, and nobody runs"
        for grant in plan.granted:
            known = self.known[grant.request.rid]
            assert not known.held
            assert grant.tokens > 0
            assert grant.start == known.computed == grant.request.computed
        self.check_preempted(plan, running)
        admitted = [self.orders[request.rid] for request, _ in plan.admitted]
        if admitted:
            passed_over = [order for order in self.queue() if order in queue and order < max(admitted)]
            assert not passed_over, "somebody was admitted out of turn"

    def check_preempted(self, plan: Plan, running: list[RequestId]) -> None:
        held = [request for request, _ in plan.preempted if self.known[request.rid].held]
        others = [request for request, _ in plan.preempted if not self.known[request.rid].held]
        assert len({request.rid for request, _ in plan.preempted}) == len(plan.preempted)
        for request, how in plan.preempted:
            assert request.rid in running
            if how == "recompute":
                assert request.computed == 0
                self.known[request.rid].computed = 0
            else:
                assert self.scheduler.preemption == "swap"
        if plan.preempted and not (held and not others):
            assert not plan.admitted, "a step that preempted admitted"
            assert not plan.swapped_in, "a step that preempted swapped in"
        if others:
            first = min(self.orders[request.rid] for request in others)
            for sequence in self.scheduler.running:
                assert sequence.order < first, "not the latest was preempted"
                assert not sequence.held, "a held sequence outlived one that runs"

    def flush(self) -> None:
        for move in self.policy.drain_moves():
            self.contents.move(move)

    def write(self, grant: Grant) -> list[int]:
        """What the device writes: the known tokens of the grant, then drafts, whose ids are given back."""
        request, stop = grant.request, grant.start + grant.tokens
        tokens = self.known[request.rid].tokens
        drafts = self.ids(stop - len(tokens))
        tokens = [*tokens, *self.chain(tokens, drafts)]
        for group, layout in zip(self.policy.groups, self.policy.layout(request.rid), strict=True):
            # A ring takes what is computed for good only: a draft would overwrite keys that are still read.
            if not isinstance(layout, Ring):
                slots = [slot_at(layout, position) for position in range(grant.start, stop)]
                self.contents.write(group.pool, slots, tokens[grant.start : stop])
        return drafts

    def compute(self, grant: Grant, drafts: list[int], right: int, ended: list[Known]) -> None:
        request, known = grant.request, self.known[grant.request.rid]
        stop = grant.start + grant.tokens
        if stop >= request.known_tokens:
            accepted = drafts[: min(right, request.final_tokens - request.known_tokens - 1)]
            ids = [*accepted, *self.ids(1)]
            stop = request.known_tokens + len(accepted)
            known.tokens += self.chain(known.tokens, ids)
            request.generated(ids)
            if request.known_tokens == request.final_tokens:
                known.end = "finished"
                ended.append(known)
        for group, layout in zip(self.policy.groups, self.policy.layout(request.rid), strict=True):
            if isinstance(layout, Ring):
                for position in range(grant.start, stop):
                    self.contents.write(group.pool, [slot_at(layout, position)], [known.tokens[position]])
        self.scheduler.computed(grant, stop - grant.start)
        known.computed = stop

    def check(self) -> None:
        """What must hold after each operation."""
        self.flush()
        self.policy.audit()
        self.check_places()
        self.check_memory()
        self.check_log()

    def check_places(self) -> None:
        """Every sequence that is not finished is in one place, in order, and the policy holds those in memory."""
        scheduler = self.scheduler
        places = {
            Status.RUNNING: scheduler.running,
            Status.WAITING: scheduler.waiting,
            Status.SWAPPED: scheduler.swapped,
        }
        found = [sequence.request.rid for place in places.values() for sequence in place]
        assert sorted(found) == sorted(known.request.rid for known in self.live), "a sequence is lost, or there twice"
        assert len(scheduler) == len(found)
        for status, place in places.items():
            assert [each.order for each in place] == sorted(each.order for each in place)
            for sequence in place:
                known = self.known[sequence.request.rid]
                assert sequence.status is status
                assert sequence.held == known.held
                assert sequence.order == self.orders[sequence.request.rid]
                assert sequence.request is known.request
                assert not sequence.granted
                assert len(known.tokens) == known.request.known_tokens
                assert known.request.computed == known.computed, f"request {known.request.rid!r} lost or found tokens"
                assert known.computed == 0 or status is not Status.WAITING
        held = {request.rid for request in self.policy.admitted()}
        assert held == {each.request.rid for each in scheduler.running}

    def check_memory(self) -> None:
        """Every sequence reads its own tokens, and the policy's accounting is that of the plainest books."""
        owners: dict[RequestId, Owner] = {}
        for sequence in self.scheduler.running:
            rid, known = sequence.request.rid, self.known[sequence.request.rid]
            layouts = self.policy.layout(rid)
            owners[rid] = Owner(known.request, known.computed, layouts)
            for group, layout in zip(self.policy.groups, layouts, strict=True):
                read = self.contents.read(group.pool, layout.slots())
                assert read == known.tokens[layout.start : layout.end], f"request {rid!r} reads other tokens"
                assert layout.end == known.computed
        self.replay()
        books = Books(self.case.policy, self.policy.groups, owners, self.state.registered.get("full", ()))
        usage = self.policy.usage()
        for pool in self.case.policy.pools:
            assert usage[pool] == books.usage(pool, None), f"the books of pool {pool!r}"

    def replay(self) -> None:
        for event in self.log.events[self._replayed :]:
            apply(self.state, event)
        self._replayed = len(self.log.events)

    def check_log(self) -> None:
        """The log tells the same statuses, lengths and tables."""
        told = self.state.requests
        assert set(told) == set(self.known)
        for rid, known in self.known.items():
            if known.end:
                assert told[rid].status == known.end
                continue
            sequence = self.scheduler._sequence(rid)
            statuses = {
                Status.RUNNING: ("running",),
                Status.WAITING: ("waiting", "preempted"),
                Status.SWAPPED: ("swapped",),
            }
            assert told[rid].status in statuses[sequence.status]
            if sequence.status is Status.WAITING:
                continue
            assert told[rid].tokens == known.computed
            if sequence.status is Status.SWAPPED:
                continue
            for group, layout in zip(self.policy.groups, self.policy.layout(rid), strict=True):
                match layout:
                    case Table():
                        assert told[rid].tables.get(group.pool, []) == list(layout.blocks)
                    case Ring() | Region():
                        assert told[rid].regions[group.pool][0] == layout.first_slot
