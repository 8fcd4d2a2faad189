"""What units and pools have in common: containers, drift, why pods do not start, and how status is told.

Only `apply` and `report` talk to Kubernetes; everything else is computed from what was seen.
"""
