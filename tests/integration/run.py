"""run.py MODULE: runs a test module; ends with 77 (for CTest: skipped) where not one of its tests could run."""
import sys
import unittest

result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]))
if not result.wasSuccessful():
    sys.exit(1)
sys.exit(77 if len(result.skipped) == result.testsRun else 0)
