"""TensorBoard: a sink, an importer, and the module `tachograph.tensorboard`."""
