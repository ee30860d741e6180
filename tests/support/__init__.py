"""Models, fakes and state machines that several test files share (`pythonpath` in pyproject puts `tests` in reach)."""
