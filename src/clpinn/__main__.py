"""`python -m clpinn` is the clpinn command."""

from clpinn.cli.commands import main

main()
