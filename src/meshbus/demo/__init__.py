"""The demo: a fleet of real node processes with visitors, and the data pipeline on their logs.

demo/roles.py defines the nodes, demo/member.py is the process of one node, demo/fleet.py starts and stops the processes.
demo/visitors.py brings programs that are not meshbus, demo/lossy.py a bad link, demo/alarms.py the replicas. demo/lake.py
makes the tables, and demo/balance.py compares what all of them counted. cli/demo.py prints the results; nothing here prints.
"""
