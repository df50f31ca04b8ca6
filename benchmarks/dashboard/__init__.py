"""The cost of the dashboard: opening, zooming, watching and idling, next to other tools."""
