"""`python -m kvlab` is `kvlab`."""

from kvlab.cli import main

main()
