"""`python -m attnd` is the command `attn`."""

import sys

from attnd.cli import main

sys.exit(main())
