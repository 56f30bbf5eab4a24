"""The formats of tables: one module per format, each with a class that implements `TableFormat`."""
