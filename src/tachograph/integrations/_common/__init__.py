"""Parts shared by several framework integrations. Importing them imports no framework."""
