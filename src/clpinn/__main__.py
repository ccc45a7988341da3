"""`python -m clpinn` is the clpinn command."""

from clpinn.cli import main

main()
