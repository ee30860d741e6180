"""The parts: what memory systems are made of."""
