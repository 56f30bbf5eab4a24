"""The edge: applications attach by topic prefix, and one message fans out to many of them."""
