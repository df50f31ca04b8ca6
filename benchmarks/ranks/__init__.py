"""False alarms, detection and cost of the rules about ranks."""
