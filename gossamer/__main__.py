"""python -m gossamer: the command line where its script is not on the path."""

from gossamer.cli.console import main

if __name__ == "__main__":
    main()
