"""The other processes of bench_large: receivers of large events, and robots that publish poses and frames."""
