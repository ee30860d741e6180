import pytest
from support.tiny_model import byte_tokenizer, tiny_decoder

from kvlab.engine.engine import Engine


@pytest.fixture(scope="session")
def decoder():
    return tiny_decoder()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def engine(decoder, tokenizer):
    """Makes engines over the tiny model; each is audited, and must be empty, at the end of the test."""
    made = []

    def make(policy=None, **options):
        made.append(Engine(decoder, tokenizer, policy, **options))
        return made[-1]

    yield make
    for each in made:
        each.policy.audit()
        if not each.unfinished:
            for usage in each.policy.usage().values():
                assert usage.owned == 0
            assert not each.policy.drain_moves()
