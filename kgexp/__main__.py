"""`python -m kgexp`."""

from kgexp.cli import main

if __name__ == "__main__":
    main()
