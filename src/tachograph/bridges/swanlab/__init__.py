"""SwanLab: a sink, an importer, the options in a training config, and the names of Axolotl's integration."""
