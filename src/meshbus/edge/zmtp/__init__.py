"""ZMTP 3.1 without I/O: state machines that take bytes and return bytes and events. Time and entropy are passed in."""
