"""The engine: a real model served through the policies."""
