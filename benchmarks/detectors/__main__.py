"""Run the detector benchmark: `python -m benchmarks.detectors`."""

import sys

from benchmarks.detectors.score import main

sys.exit(main())
