"""Run the `tacho` command: `python -m tachograph`."""

from tachograph.cli import main

main()
