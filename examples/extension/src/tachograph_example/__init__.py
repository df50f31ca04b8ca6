"""An example of a package that adds a sink and an importer to Tachograph."""
