"""The demo: a fleet of real node processes, and the data pipeline on their logs.

demo/roles.py defines the nodes, demo/member.py is the process of one node, demo/fleet.py starts and stops the processes,
demo/lake.py makes the tables. cli/demo.py prints the results; nothing here prints.
"""
