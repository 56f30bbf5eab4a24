"""Other nodes, real or simulated, for tests of what runs on the mesh. Shipped, and never imported by the rest."""
