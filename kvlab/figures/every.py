"""The ledger of all three articles."""

from __future__ import annotations

from kvlab.figures import article_000, article_002, article_003
from kvlab.figures.ledger import Figure


def figures() -> list[Figure]:
    """Every claim, article by article."""
    return [*article_000.figures(), *article_002.figures(), *article_003.figures()]
