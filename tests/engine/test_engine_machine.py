"""Random arrivals, samples, beams, drafts and cancels against a pool that is too small for them."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.tiny_model import TIGHT, greedy, prompts

from kvlab.engine.engine import Engine
from kvlab.engine.loop import PromptLookup
from kvlab.engine.sampling import SamplingParams

LENGTHS = (1, 3, 4, 7, 8, 9, 13, 17)
TOKENS = 9
PROMPTS = [*prompts(LENGTHS, seed=1), prompts((4,), seed=2)[0] * 4]


@pytest.fixture(scope="module")
def expected(decoder):
    return [greedy(decoder, prompt, TOKENS) for prompt in PROMPTS]


def machine(decoder, tokenizer, expected, policy, preemption):
    class Serving(RuleBasedStateMachine):
        """The model: which prompt each request has, and what a plain loop says to it."""

        @initialize(
            drafts=st.sampled_from([None, PromptLookup(tokens=3)]),
            budget=st.sampled_from([4, 11, 64]),
            samples=st.sampled_from(["fork", "cache"]),
            batching=st.sampled_from(["continuous", "continuous", "static"]),
        )
        def start(self, drafts, budget, samples, batching):
            self.engine = Engine(
                decoder, tokenizer, policy, drafts=drafts, token_budget=budget, max_running=4, samples=samples,
                preemption=preemption, batching=batching,
            )  # fmt: skip
            self.asked = {}
            self.capacity = {name: usage.capacity for name, usage in self.engine.policy.usage().items()}

        @rule(which=st.integers(0, len(PROMPTS) - 1), kind=st.sampled_from(["greedy", "greedy", "samples", "beams"]))
        def submit(self, which, kind):
            params = {
                "greedy": SamplingParams(temperature=0, max_tokens=TOKENS),
                "samples": SamplingParams(n=3, seed=7, max_tokens=TOKENS),
                "beams": SamplingParams(beams=2, max_tokens=TOKENS),
            }[kind]
            self.asked[self.engine.submit(PROMPTS[which], params)] = which if kind == "greedy" else None

        @precondition(lambda self: self.engine.unfinished)
        @rule(steps=st.integers(1, 4))
        def step(self, steps):
            for _ in range(steps):
                self.engine.step()
                self.engine.policy.audit()
            self.collect()

        @precondition(lambda self: self.asked)
        @rule(data=st.data())
        def cancel(self, data):
            rid = data.draw(st.sampled_from(sorted(self.asked)))
            self.engine.cancel(rid)
            del self.asked[rid]

        def collect(self):
            for rid in list(self.asked):
                if rid not in self.engine.served:
                    result, which = self.engine.result(rid), self.asked.pop(rid)
                    assert all(each.reason in ("stop", "length") for each in result.completions)
                    if which is not None:
                        assert result.token_ids == expected[which]

        @invariant()
        def the_books_balance(self):
            if hasattr(self, "engine"):
                self.engine.policy.audit()
                for name, usage in self.engine.policy.usage().items():
                    assert usage.capacity == self.capacity[name]

        def teardown(self):
            if not hasattr(self, "engine"):
                return
            bound = 40 * (1 + len(self.asked)) * (TOKENS + max(LENGTHS))
            while self.engine.unfinished:
                bound -= 1
                assert bound, "the engine hangs"
                self.engine.step()
            self.collect()
            self.engine.policy.audit()
            assert not self.asked
            assert not len(self.engine.scheduler)
            assert all(usage.owned == 0 for usage in self.engine.policy.usage().values())

    return Serving


@pytest.mark.parametrize("name", TIGHT)
def test_nothing_hangs_leaks_or_changes_an_answer(decoder, tokenizer, expected, name):
    run_state_machine_as_test(
        machine(decoder, tokenizer, expected, TIGHT[name], "swap" if "swap" in name else "recompute"),
        settings=settings(
            max_examples=12, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
