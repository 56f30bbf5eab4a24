"""The main job in small: a fleet of real node processes, and the pipeline over what they logged.

Who plays is in demo/roles.py, one node's process in demo/member.py, starting and stopping them in demo/fleet.py, the
tables in demo/lake.py. What people see of it is cli/demo.py; nothing here prints.
"""
