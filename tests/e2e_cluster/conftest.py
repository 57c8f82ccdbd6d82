"""Lets these tests import the embedded cluster's program, which the distribution does not hold. None starts it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "e2e" / "cluster"))
