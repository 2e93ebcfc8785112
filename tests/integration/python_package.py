"""The Python package `ellm` of this checkout."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client/python")
sys.path.insert(0, PACKAGE)
import ellm                                             # noqa: E402,F401

LONG = dict(max_tokens=1900, ignore_eos=True)           # nearly all of stories260K's context
