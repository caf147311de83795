"""`python -m godmw`: the same as the command `godmw`."""

from godmw.cli.main import main

if __name__ == "__main__":
    main()
