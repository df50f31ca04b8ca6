"""Parts that several framework integrations share. Nothing here imports a framework when it is loaded."""
