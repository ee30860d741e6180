"""kvlab: the memory systems behind LLM serving, to build, watch, measure and break."""

__version__ = "0.1.0"
