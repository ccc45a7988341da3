"""`python -m clpinn` is the clpinn command."""

from clpinn.cli.app import main

main()
