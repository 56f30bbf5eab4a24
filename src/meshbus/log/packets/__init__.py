"""The flight recorder: what a node decided about each packet, as rows of the table `packets`, in a bounded file set."""
