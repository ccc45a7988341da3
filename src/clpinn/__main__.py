"""The clpinn command, also as `python -m clpinn`. Ctrl-C ends it with one line, also while it still imports."""

import signal
import sys


class Interrupted(BaseException):
    """Ctrl-C. It is no KeyboardInterrupt, which the libraries of the command line answer in their own way."""


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from clpinn.cli.app import main as command

        command()
    except Interrupted:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise Interrupted


if __name__ == "__main__":
    main()
