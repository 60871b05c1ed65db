"""Entry point of `python -m gossamer`."""

from gossamer.cli.console import main

if __name__ == "__main__":
    main()
