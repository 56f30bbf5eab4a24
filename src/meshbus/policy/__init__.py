"""Policy decisions: permissions, gateway verdicts, capability matching, subscription lookup. Pure code without I/O."""
