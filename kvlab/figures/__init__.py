"""The ledger: every figure the articles state, recomputed by kvlab's own code."""
