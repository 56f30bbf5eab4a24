"""Words for people: verbs of the command line. Nothing here can do what the API cannot."""
