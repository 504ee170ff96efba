"""`python -m dlpack_wire_server`."""

from __future__ import annotations

import sys

from .app import main

sys.exit(main())
