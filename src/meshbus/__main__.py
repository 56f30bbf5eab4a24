"""`python -m meshbus`: the same as the command `meshbus`, for a Python whose scripts are not on the path."""

import sys

from meshbus.cli import main

if __name__ == "__main__":
    sys.exit(main())
