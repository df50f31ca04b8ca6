"""The quality of the diagnostic rules on real training logs with labels: `make bench-detectors`."""
