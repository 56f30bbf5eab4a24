"""Tests about the tree itself: layout, layers, the public face, the locks, the documents."""
