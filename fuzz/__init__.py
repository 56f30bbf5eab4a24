"""Coverage-guided fuzzing of everything that reads bytes of others. `make fuzz SECONDS=60 TARGET=history` runs it.

    target.py     what a target is: a function that takes bytes, and the errors by which it may refuse them
    targets/      the table of targets, one file for each room of meshbus
    pieces.py     inputs that consist of several parts, such as datagrams in their order
    reach.py      which lines a call runs through
    mutation.py   changes of inputs
    loop.py       runs changed inputs, and keeps those that reach something new
    corpus.py     the inputs in corpus/, one file for each target
    finding.py    an input that ended a target by an error of another kind, as a file, and how to repeat it
    worker.py     one target in a process of its own, which may die by its input
    __main__.py   the command line

A new decoder needs a row in targets/ and a few valid inputs in corpus/; tests/house/test_fuzz.py fails without. Why there is
a loop of our own is in docs/decisions/0080.
"""
